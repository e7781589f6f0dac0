"""What a fake backend keeps of one request."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class Recorded:
    """One request, as it came.

    Attributes:
        target: path and query string.
        headers: in order, names as spelt.
        connection: number of the connection, from 0.
        arrived: when the request was complete; seconds of `time.monotonic`, as all times here.
        closed: when the peer closed the connection; None as long as it has not.
        complete: the answer was sent to its end.
        sent: events (or segments of a script) sent so far.
        answer: the bytes of the answer's body so far, without framing.
    """

    method: str
    target: str
    headers: RawHeaders
    body: bytes
    connection: int
    arrived: float = field(default_factory=time.monotonic)
    closed: float | None = None
    complete: bool = False
    sent: int = 0
    answer: bytearray = field(default_factory=bytearray)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def abandoned(self) -> bool:
        """The peer closed before the answer was complete."""
        return self.closed is not None and not self.complete

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)
