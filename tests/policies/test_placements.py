from policies.placements import Placements
from policies.rendezvous import highest
from tests.policies.views import views


def test_even_shares_leave_it_to_the_hash() -> None:
    for number in range(50):
        key = b"%d" % number
        assert Placements().place(key, views("abcd"), 0.0, 1.0) == highest(key, views("abcd"))


def test_nobody_gets_far_more_than_the_others() -> None:
    placements, candidates = Placements(), views("abcd")
    placed = dict.fromkeys("abcd", 0)
    for number in range(200):
        placed[placements.place(b"%d" % number, candidates, number * 0.01, 1.0).id] += 1
        mean = sum(placed.values()) / 4
        assert max(placed.values()) <= 1.1 * mean + 2


def test_weights_count_and_old_shares_fade() -> None:
    placements, candidates = Placements(), views("ab")
    heavy = placements.place(b"x", candidates, 0.0, 100.0)
    for number in range(20):
        assert placements.place(b"%d" % number, candidates, 0.0, 1.0) != heavy
    later = {placements.place(b"%d" % number, candidates, 3600.0, 1.0).id for number in range(20)}
    assert later == {"a", "b"}
