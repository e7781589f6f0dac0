"""What names the current snapshot in Redis, and says where in the stream it belongs."""

from __future__ import annotations

import msgspec

from gateway.shared.records import BadRecord, Origin
from gateway.shared.stream import Position

VERSION = 1


class Snapshot(msgspec.Struct, frozen=True):
    """What the pointer says.

    Attributes:
        id: of the hash with the chunks.
        position: in the stream; all entries up to it are in the snapshot.
        numbers: of the last batch in it, by origin in hex.
        chunks, bytes: its size.
        written: Redis's clock in milliseconds, when the position was noted.
        before: id of the snapshot before it, which a replica may still be loading; "" without one.
    """

    version: int
    id: str
    position: str
    numbers: dict[str, int]
    chunks: int
    bytes: int
    written: int
    before: str = ""

    @property
    def at(self) -> Position:
        return Position.parse(self.position)

    @property
    def origins(self) -> dict[Origin, int]:
        return {bytes.fromhex(origin): number for origin, number in self.numbers.items()}


def read_pointer(text: bytes) -> Snapshot:
    """Raises:
    BadRecord: it says nothing that this release understands.
    """
    try:
        snapshot = msgspec.json.decode(text, type=Snapshot)
        usable = snapshot.version == VERSION
        _ = snapshot.at, snapshot.origins
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadRecord(f"the snapshot's pointer cannot be read: {error}") from error
    if not usable:
        raise BadRecord(f"the snapshot has version {snapshot.version}, expected {VERSION}")
    return snapshot
