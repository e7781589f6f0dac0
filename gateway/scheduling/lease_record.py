"""What replicas tell each other of their leases, as bytes.

A record is a MessagePack array of events. Fields may be added at the end of an event, and older
replicas pass over them; an event of a kind that is not known here makes the record unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from gateway.shared.records import BadRecord

Number = Annotated[int, Meta(ge=0, le=2**53)]
"""Counts a replica's leases, from 1."""
Amount = Annotated[int, Meta(ge=0, le=2**40)]


class Taken(msgspec.Struct, array_like=True, omit_defaults=True, tag=1):
    """A lease was taken.

    Attributes:
        backend: `backend_key` of its id.
        prefill: whether that is its class.
        micros: microseconds of prefill that it brings.
        anchor: as the lease's.
        note: for the policy.
        age: milliseconds since it was taken.
        began: whether its first token has come.
    """

    number: Number
    backend: Annotated[int, Meta(ge=0)]
    prefill: bool
    prompt_tokens: Amount
    uncached_tokens: Amount
    micros: Amount
    anchor: Annotated[bytes, Meta(max_length=64)] = b""
    note: bytes = b""
    age: Amount = 0
    began: bool = False


class Began(msgspec.Struct, array_like=True, omit_defaults=True, tag=2):
    """A lease's first token came.

    Attributes:
        age: milliseconds since the lease was taken.
    """

    number: Number
    age: Amount = 0


class Ended(msgspec.Struct, array_like=True, tag=3):
    """A lease was given back."""

    number: Number


class Listing(msgspec.Struct, array_like=True, tag=4):
    """All leases that are out of those numbered above `after` and up to `last`.

    Attributes:
        turn: counts the replica's listings; a later one is right.
    """

    turn: Number
    after: Number
    last: Number
    leases: list[Taken]


Event = Taken | Began | Ended | Listing

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Event])


def backend_key(id: str) -> int:
    """Stands for a backend's id in 8 bytes."""
    return xxhash.xxh3_64_intdigest(id.encode())


def encode(events: Sequence[Event]) -> bytes:
    return _encoder.encode(events)


def decode(record: bytes) -> list[Event]:
    """
    Raises:
        BadRecord: it is broken, or has events of a later version.
    """
    try:
        return _decoder.decode(record)
    except msgspec.DecodeError as error:
        raise BadRecord(f"lease record: {error}") from None
