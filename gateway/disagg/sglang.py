"""SGLang: both legs at once, with the same three members, by which they meet in a room at the
prefill engine's bootstrap server. Engines know their roles: the prefill engine stops by itself, and
neither of them serves a request that names no room."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.bodies import carried, unstreamed
from gateway.disagg.connector import Connector, Leg, Pairing, Release, Side
from gateway.disagg.members import Members
from gateway.disagg.refusal import Refusal, prompts, refusal
from gateway.disagg.route import Route
from gateway.disagg.sides import cache_mismatch

BOOTSTRAP_PORT = 8998
_ROUTES = frozenset({Route.CHAT, Route.COMPLETIONS, Route.GENERATE})
"""The others have no members for a room."""
_ROOMS = 1 << 63


class Sglang:
    name: ClassVar[ConnectorName] = ConnectorName.SGLANG
    concurrent: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True
    holds: ClassVar[bool] = True
    fetch_within: ClassVar[float | None] = None
    sees_to_it: ClassVar[bool] = True
    alone: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    def refuses(self, body: bytes, route: Route) -> Refusal | None:
        return refusal(body, batches=True) if route in _ROUTES else Refusal.ROUTE

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        if prefill.page_size and decode.page_size and prefill.page_size != decode.page_size:
            return f"pages of {prefill.page_size} tokens, and of {decode.page_size}"
        return cache_mismatch(prefill, decode)

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        return Leg(unstreamed(body, _meeting(body, pairing)), pairing.headers())

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        return Leg(carried(body, _meeting(body, pairing)), pairing.headers())

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        body = msgspec.json.encode({"rid": pairing.id})
        return Release(to_decode=False, path="/abort_request", body=body)


def _meeting(body: bytes, pairing: Pairing) -> dict[str, bytes]:
    """Where the legs meet. Each prompt of several has a room of its own."""
    side = pairing.prefill
    host, port, room = side.host, side.bootstrap_port or BOOTSTRAP_PORT, pairing.room
    values: dict[str, object] = {
        "bootstrap_host": host,
        "bootstrap_port": port,
        "bootstrap_room": room,
    }
    count = prompts(Members(body))
    if count is not None:
        values = {
            "bootstrap_host": [host] * count,
            "bootstrap_port": [port] * count,
            "bootstrap_room": [(room + at) % _ROOMS for at in range(count)],
        }
    values["rid"] = pairing.id
    return {name: msgspec.json.encode(value) for name, value in values.items()}


SGLANG: Connector = Sglang()
