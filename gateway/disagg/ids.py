"""Ids that tie the two legs of a handover together."""

from __future__ import annotations

import os
from collections.abc import Callable

from gateway.disagg.connector import Pairing, Side
from gateway.disagg.route import Route

_ID_BYTES = 16
_ROOM_BYTES = 8
_HIGH = 1 << 62
"""TensorRT-LLM numbers its own requests from below: a room, which is the id there, is never among
these."""


class PairingIds:
    """Makes pairings. Their ids are random, so that no two of any process are the same, and of one
    length: SGLang aborts all requests whose ids begin with the one that it is given.

    Args:
        random: so many bytes, unpredictable.
    """

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random

    def pair(self, route: Route, prefill: Side, decode: Side) -> Pairing:
        """A new pairing, for one attempt at a handover."""
        drawn = self._random(_ID_BYTES + _ROOM_BYTES)
        id = drawn[:_ID_BYTES].hex()
        return Pairing(
            id=id,
            room=int.from_bytes(drawn[_ID_BYTES:], "big") >> 2 | _HIGH,
            transfer_id=f"xfer-{id}",
            route=route,
            prefill=prefill,
            decode=decode,
        )
