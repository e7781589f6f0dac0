from __future__ import annotations

from math import inf

import pytest

from gateway.shared.records import Kind, Origin
from loadtests.replicas.feed import Member, VirtualFeed
from loadtests.replicas.sharing import Sharing
from loadtests.replicas.tally import Tally
from loadtests.sim.timeline import VirtualTimeline


class Ear:
    kinds = frozenset({Kind.USED})

    def __init__(self, timeline: VirtualTimeline) -> None:
        self.heard: list[tuple[float, bytes, Origin]] = []
        self._timeline = timeline

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        self.heard.append((self._timeline.time(), record, origin))

    def missed(self, origin: Origin) -> None: ...
    def gone(self, origin: Origin) -> None: ...


def made(sharing: Sharing) -> tuple[VirtualTimeline, list[Member], list[Ear], Tally]:
    timeline, tally = VirtualTimeline(), Tally()
    feed = VirtualFeed(sharing, timeline, tally)
    members = [feed.join() for _ in range(3)]
    ears = [Ear(timeline) for _ in members]
    for member, ear in zip(members, ears, strict=True):
        member.subscribe([ear])
    return timeline, members, ears, tally


def test_all_others_hear_it_after_the_lag_and_in_order() -> None:
    timeline, (first, second, _), ears, tally = made(Sharing("s", lag=0.25))
    timeline.call_at(1.0, lambda: first.publish(Kind.USED, b"a"))
    timeline.call_at(1.1, lambda: second.publish(Kind.USED, b"b"))
    timeline.run()
    assert ears[2].heard == [
        (1.25, b"a", first.origin),
        (pytest.approx(1.35), b"b", second.origin),
    ]
    assert [record for _, record, _ in ears[0].heard] == [b"b"]
    assert tally.records[Kind.USED] == 2


def test_what_nobody_asked_for_is_not_told() -> None:
    timeline, (first, *_), ears, _ = made(Sharing("s"))
    first.publish(Kind.LOAD, b"a")
    timeline.run()
    assert ears[1].heard == []


def test_those_that_synchronise_hear_it_at_the_next_time() -> None:
    timeline, (first, *_), ears, _ = made(Sharing("s", every=10.0))
    for time in (1.0, 9.0, 10.0):
        timeline.call_at(time, lambda: first.publish(Kind.USED, b"a"))
    timeline.run()
    assert [time for time, *_ in ears[1].heard] == [10.0, 10.0, 20.0]


def test_where_nothing_is_shared_nobody_hears() -> None:
    timeline, (first, *_), ears, tally = made(Sharing("s", lag=inf))
    first.publish(Kind.USED, b"abc")
    timeline.run()
    assert not any(ear.heard for ear in ears)
    assert tally.bytes[Kind.USED] == 3


def test_origins_differ_in_every_part_that_stands_for_them() -> None:
    _, members, _, _ = made(Sharing("s"))
    assert len({member.origin[:2] for member in members}) == 3
