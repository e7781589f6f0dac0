import pytest

from loadtests.rivals.recent_use import RecentUse
from tests.policies.views import chain


def test_sums_of_the_window() -> None:
    use = RecentUse(180.0)
    assert (use.prefill_seconds(0.0), use.miss_rate(0.0)) == (0.0, 1.0)
    use.add(0.0, chain("x"), 2.0, 1000, 1000)
    use.add(100.0, chain("x"), 0.5, 1000, 200)
    assert use.prefill_seconds(179.0) == pytest.approx(2.5)
    assert use.miss_rate(179.0) == pytest.approx(0.6)
    assert use.prefill_seconds(180.0) == pytest.approx(0.5)
    assert use.miss_rate(180.0) == pytest.approx(0.2)
    assert use.prefill_seconds(400.0) == 0.0


def test_what_makes_room_is_the_oldest_and_the_end_of_prompts() -> None:
    use = RecentUse(180.0)
    for _ in range(3):
        use.add(0.0, chain("old", "1"), 1.0, 200, 200)
    use.add(10.0, chain("new", "1"), 1.0, 200, 200)
    assert use.victims(10.0, new_blocks=2, capacity=6) == 0
    assert use.victims(10.0, new_blocks=3, capacity=6) == 3
    assert use.victims(10.0, new_blocks=5, capacity=6) == 3 + 3 + 1
    # Nobody asked for the old ones within the window.
    assert use.victims(185.0, new_blocks=5, capacity=6) == 1


def test_what_is_over_capacity_is_gone() -> None:
    use = RecentUse(180.0)
    use.add(0.0, chain("old"), 1.0, 100, 100)
    use.victims(0.0, new_blocks=1, capacity=2)
    use.add(1.0, chain("new", "1"), 1.0, 200, 200)
    assert use.victims(1.0, new_blocks=2, capacity=2) == 2


def test_what_prompts_share_stays_longest() -> None:
    use = RecentUse(180.0)
    use.add(0.0, chain("s", "1"), 1.0, 200, 200)
    use.add(1.0, chain("s", "2"), 1.0, 200, 200)
    assert use.victims(1.0, new_blocks=2, capacity=3) == 1 + 1


def test_a_block_that_comes_back_after_the_window_counts_anew() -> None:
    use = RecentUse(180.0)
    use.add(0.0, chain("x"), 1.0, 100, 100)
    use.add(200.0, chain("x"), 1.0, 100, 100)
    assert use.victims(200.0, new_blocks=1, capacity=1) == 1
    use.add(210.0, chain("x"), 1.0, 100, 0)
    assert use.victims(210.0, new_blocks=1, capacity=1) == 2
