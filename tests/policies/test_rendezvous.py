from policies.rendezvous import highest, highest_two, weight
from tests.policies.views import views


def test_is_the_same_in_every_process() -> None:
    """R10, K18: a value that changes here moves every session at an upgrade."""
    assert weight(b"key", "backend") == 0xAA5386DF0AF2F3C7


def test_order_of_candidates_does_not_matter() -> None:
    for key in (b"%d" % number for number in range(50)):
        assert highest(key, views("abcd")).id == highest(key, views("dbca")).id


def test_keys_spread() -> None:
    homes = [highest(b"%d" % number, views("abcd")).id for number in range(1000)]
    assert all(homes.count(id) > 180 for id in "abcd")


def test_the_first_two_are_the_highest_and_the_highest_without_it() -> None:
    for key in (b"%d" % number for number in range(50)):
        candidates = views("abcdef")
        first, second = (candidates[place] for place in highest_two(key, candidates))
        assert first is highest(key, candidates)
        assert second is highest(key, [other for other in candidates if other is not first])
