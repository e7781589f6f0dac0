from loadtests.rivals.arrivals import Arrivals
from tests.loadtests.rivals.engines import engines


def test_only_the_window_counts() -> None:
    arrivals = Arrivals(60.0)
    for now in (0.0, 10.0, 50.0):
        arrivals.add(now, "a")
    arrivals.add(55.0, "b")
    assert [arrivals.count(59.0, id) for id in "abc"] == [3, 1, 0]
    assert arrivals.count(60.0, "a") == 2
    assert [arrivals.count(75.0, id) for id in "abc"] == [1, 1, 0]


def test_the_first_of_the_fewest() -> None:
    arrivals = Arrivals(60.0)
    arrivals.add(0.0, "a")
    assert arrivals.fewest(1.0, engines("abc")).id == "b"
    assert arrivals.fewest(100.0, engines("abc")).id == "a"
