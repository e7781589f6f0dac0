from __future__ import annotations

from gateway.prefix.holder import Holder, Touch
from gateway.prefix.recency import Recency
from gateway.prefix.tree import Tree


def use(recency: Recency, holder: Holder, time: int) -> Touch:
    touch = Touch(holder, Tree().root, time)
    holder.link(touch)
    if touch.older is None:
        recency.note(holder)
    return touch


def test_the_least_recent_of_all_is_found() -> None:
    recency = Recency()
    one, two = Holder("a", 1000, 1000), Holder("b", 1000, 1000)
    times = {time: use(recency, holder, time) for time, holder in [(5, one), (7, two), (9, one)]}
    assert recency.oldest() is times[5]
    one.retire(times[5])
    assert recency.oldest() is times[7]
    late = use(recency, one, 6)
    assert recency.oldest() is late
    one.retire(late)
    two.retire(times[7])
    assert recency.oldest() is times[9]


def test_holders_that_are_gone_are_forgotten() -> None:
    recency = Recency()
    kept = use(recency, Holder("kept", 1000, 1000), 1)
    for time in range(2, 1000):
        holder = Holder("short", 1000, 1000)
        holder.retire(use(recency, holder, time))
    assert len(recency._heap) < 100
    assert len(recency._times) < 100
    assert recency.oldest() is kept
