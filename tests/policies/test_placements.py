from policies.placements import Placements
from policies.rendezvous import highest
from tests.policies.views import View, views


def place(placements: Placements, key: bytes, now: float, weight: float, ids: str = "abcd") -> View:
    chosen = placements.choose(key, views(ids), now, weight)
    placements.note(chosen, now, weight)
    return chosen


def test_even_shares_leave_it_to_the_hash() -> None:
    for number in range(50):
        key = b"%d" % number
        assert Placements().choose(key, views("abcd"), 0.0, 1.0) == highest(key, views("abcd"))


def test_nobody_gets_far_more_than_the_others() -> None:
    placements = Placements()
    placed = dict.fromkeys("abcd", 0)
    for number in range(200):
        placed[place(placements, b"%d" % number, number * 0.01, 1.0).id] += 1
        mean = sum(placed.values()) / 4
        assert max(placed.values()) <= 1.1 * mean + 2


def test_weights_count_and_old_shares_fade() -> None:
    placements = Placements()
    heavy = place(placements, b"x", 0.0, 100.0, "ab")
    for number in range(20):
        assert place(placements, b"%d" % number, 0.0, 1.0, "ab").id != heavy.id
    later = {place(placements, b"%d" % number, 3600.0, 1.0, "ab").id for number in range(20)}
    assert later == {"a", "b"}


def test_asking_counts_nothing() -> None:
    placements, candidates = Placements(), views("ab")
    asked = {placements.choose(b"key", candidates, 0.0, 1.0).id for _ in range(50)}
    assert len(asked) == 1
