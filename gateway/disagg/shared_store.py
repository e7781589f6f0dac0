"""A store of caches that engines share, such as LMCache's: the prefill engine puts the prompt there
before it answers, and the decode engine finds it there by itself."""

from __future__ import annotations

from typing import ClassVar

from gateway.config import ConnectorName
from gateway.disagg.bodies import CAPPED, carried, one_token
from gateway.disagg.connector import Connector, Leg, Pairing, Release, Side
from gateway.disagg.members import Members
from gateway.disagg.refusal import Refusal, refusal
from gateway.disagg.route import Route
from gateway.disagg.sides import cache_mismatch


class SharedStore:
    name: ClassVar[ConnectorName] = ConnectorName.SHARED_STORE
    concurrent: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    sees_to_it: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    waits: ClassVar[bool] = False
    fetch_within: ClassVar[float | None] = None

    def refuses(self, body: bytes, route: Route) -> Refusal | None:
        if route not in CAPPED:
            return Refusal.ROUTE
        why = refusal(body)
        if why is None and route is Route.MESSAGES and _thinks(Members(body)):
            # Engines that are told of a transfer do not look at it; here they are not.
            return Refusal.THINKING
        return why

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        return cache_mismatch(prefill, decode)

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        return Leg(one_token(body, pairing.route, {}), pairing.headers())

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        return Leg(carried(body, {}), pairing.headers())

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        return None


def _thinks(members: Members) -> bool:
    thinking = members.get("thinking")
    if thinking is None or not thinking.startswith(b"{"):
        return False
    return Members(thinking).get("type") != b'"disabled"'


SHARED_STORE: Connector = SharedStore()
