from __future__ import annotations

import pytest

from gateway.shared.records import BadRecord, Kind, Origin
from gateway.shared.replicas import ABANDON, Replicas, alive

A, B = b"a-------", b"b-------"
LEASE = 3.0


class Listener:
    """Replicas on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ended: list[Origin] = []
        self.replicas = Replicas(LEASE, lambda: self.now, self.ended.append)

    def listen(self, seconds: float, *alive: Origin) -> None:
        """Read the stream to its end every half second, with these heard each time."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for origin in alive:
                self.replicas.heard(origin, 0.0)
            self.replicas.listened()
            self.replicas.look()


@pytest.fixture
def listener() -> Listener:
    made = Listener()
    made.listen(0.5, A, B)
    return made


def test_who_is_silent_for_a_lease_is_gone_and_who_is_not_stays(listener: Listener) -> None:
    listener.listen(LEASE - 0.5, B)
    assert listener.ended == []
    listener.listen(0.5, B)
    assert listener.ended == [A]
    listener.listen(10, B)
    assert (listener.ended, [*listener.replicas.others]) == ([A], [B])


def test_how_soon_the_first_is_gone_is_known(listener: Listener) -> None:
    assert listener.replicas.patience == LEASE
    listener.listen(LEASE - 1.0, B)
    assert listener.replicas.patience == 1.0
    listener.now += listener.replicas.patience
    listener.replicas.heard(B, 0.0)
    listener.replicas.listened()
    assert listener.ended == [A]
    assert listener.replicas.patience == LEASE


def test_who_comes_back_can_go_again(listener: Listener) -> None:
    listener.listen(4, B)
    listener.listen(1, A, B)
    assert {*listener.replicas.others} == {A, B}
    listener.listen(4, B)
    assert listener.ended == [A, A]


def test_silence_while_this_replica_does_not_listen_is_not_believed(listener: Listener) -> None:
    for _ in range(16):
        listener.now += 0.5
        listener.replicas.look()
    assert listener.replicas.patience == 0
    listener.listen(0.5)
    assert listener.ended == []  # 8.5 seconds after they were heard last
    assert listener.replicas.patience == LEASE
    listener.listen(LEASE - 0.5, B)
    assert listener.ended == []
    listener.listen(0.5, B)
    assert listener.ended == [A]


def test_a_freeze_of_this_replica_ends_nobody(listener: Listener) -> None:
    listener.now += 100.0
    listener.replicas.listened()  # what had been read before
    listener.listen(2, A, B)
    assert listener.ended == []


def test_nobody_is_believed_for_ever_while_nothing_can_be_heard(listener: Listener) -> None:
    listener.now += ABANDON * LEASE
    listener.replicas.look()
    assert listener.ended == []
    listener.now += 0.1
    listener.replicas.look()
    assert {*listener.ended} == {A, B}
    listener.listen(1, A)
    assert [*listener.replicas.others] == [A]


def test_who_was_silent_long_before_this_replica_came_is_gone_at_once() -> None:
    listener = Listener()
    listener.replicas.heard(A, LEASE + 1)
    listener.replicas.heard(B, LEASE + 1)
    listener.replicas.heard(B, 0.5)
    assert listener.ended == []
    listener.replicas.listened()
    assert (listener.ended, [*listener.replicas.others]) == ([A], [B])


def test_a_goodbye_is_believed_at_once(listener: Listener) -> None:
    listener.replicas.apply(Kind.ALIVE, alive("1.2", leaves=False), A)
    assert listener.replicas.others[A].version == "1.2"
    listener.replicas.apply(Kind.ALIVE, alive("1.2", leaves=True), A)
    assert (listener.ended, [*listener.replicas.others]) == ([A], [B])


@pytest.mark.parametrize("record", [b"", b"\x02", b"\x00\xff\xfe"])
def test_other_signs_of_life_are_refused(listener: Listener, record: bytes) -> None:
    with pytest.raises(BadRecord):
        listener.replicas.apply(Kind.ALIVE, record, A)
    assert {*listener.replicas.others} == {A, B}


def test_who_comes_and_goes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "prefixgate.shared")
    listener = Listener()
    listener.listen(1, A, B)
    listener.replicas.apply(Kind.ALIVE, alive("1.2", leaves=True), A)
    listener.listen(4)
    listener.listen(1, A)
    for _ in range(int(2 * ABANDON * LEASE) + 2):
        listener.now += 0.5
        listener.replicas.look()
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "another replica is there: 2 with this one"),
        ("INFO", "another replica is there: 3 with this one"),
        ("INFO", "a replica has stopped: 2 with this one"),
        ("WARNING", "a replica was silent for 3 s and counts as gone: 1 with this one"),
        ("INFO", "another replica is there: 2 with this one"),
        ("WARNING", "nothing was heard of the other replicas for too long: all are gone"),
    ]
