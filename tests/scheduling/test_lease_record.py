from __future__ import annotations

import msgspec
import pytest

from gateway.scheduling.lease_record import (
    Began,
    Ended,
    Listing,
    Taken,
    backend_key,
    decode,
    encode,
)
from gateway.shared.records import BadRecord

TAKEN = Taken(7, backend_key("http://10.0.0.1:8000"), True, 5000, 3000, 300_000, b"12345678")


def test_events_come_back_as_they_were() -> None:
    events = [TAKEN, Began(7), Ended(7), Listing(3, 0, 7, [TAKEN])]
    assert decode(encode(events)) == events


def test_events_are_small() -> None:
    assert len(encode([TAKEN])) <= 44
    assert len(encode([Began(100_000)])) <= 10


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff",
        encode([TAKEN])[:-1],
        encode([TAKEN]) + b"x",
        msgspec.msgpack.encode([[1, 2, 3]]),
        msgspec.msgpack.encode([[1, 7, 8, True, -1, 0, 0]]),
        msgspec.msgpack.encode([[1, 7, 8, True, 2**41, 0, 0]]),
        msgspec.msgpack.encode([[99, 7]]),
        msgspec.msgpack.encode({"1": 7}),
    ],
)
def test_what_cannot_be_read_is_a_bad_record(record: bytes) -> None:
    with pytest.raises(BadRecord, match="lease record"):
        decode(record)


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    assert decode(msgspec.msgpack.encode([[2, 7, 0, "new"]])) == [Began(7)]
