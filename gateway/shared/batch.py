"""Many records in one entry of the stream.

    version u8 | origin 8 bytes | number u64 | records: (kind u8, length u32, bytes) ...

Integers are big-endian. Numbers count the batches of an origin from 1 on without a hole, so that
a reader sees what it missed and what it has had.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from gateway.shared.records import ORIGIN_BYTES, BadRecord, Origin

VERSION = 1
_HEAD = Struct(f">B{ORIGIN_BYTES}sQ")
_RECORD = Struct(">BI")
RECORD_HEAD = _RECORD.size
"""Bytes that a batch needs for a record besides those of the record."""


class UnknownVersion(BadRecord):
    """Another release wrote it."""


def pack(origin: Origin, number: int, records: Iterable[tuple[int, bytes]]) -> bytes:
    parts = [_HEAD.pack(VERSION, origin, number)]
    for kind, record in records:
        parts.append(_RECORD.pack(kind, len(record)))
        parts.append(record)
    return b"".join(parts)


def read_head(batch: bytes) -> tuple[Origin, int]:
    """Whose batch it is, and its number.

    Raises:
        UnknownVersion: nothing is known of it.
        BadRecord: it is no batch.
    """
    if not batch:
        raise BadRecord("a batch is empty")
    if batch[0] != VERSION:
        raise UnknownVersion(f"a batch has version {batch[0]}, expected {VERSION}")
    if len(batch) < _HEAD.size:
        raise BadRecord(f"a batch has {len(batch)} bytes, expected at least {_HEAD.size}")
    _, origin, number = _HEAD.unpack_from(batch)
    return origin, number


def read_records(batch: bytes) -> list[tuple[int, bytes]]:
    """Kind and bytes of each record of a batch whose head can be read.

    Raises:
        BadRecord: it ends in the middle of a record.
    """
    records = []
    at, end = _HEAD.size, len(batch)
    while at < end:
        if at + RECORD_HEAD > end:
            raise BadRecord("a batch ends in the head of a record")
        kind, length = _RECORD.unpack_from(batch, at)
        at += RECORD_HEAD
        if at + length > end:
            raise BadRecord(f"a record has {length} bytes, of which the batch holds {end - at}")
        records.append((kind, batch[at : at + length]))
        at += length
    return records
