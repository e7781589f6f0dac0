"""Which prefill engine may work for which decode engine."""

from __future__ import annotations

from typing import Protocol

from gateway.disagg.connector import Connector, Pairing, Side
from gateway.disagg.ids import PairingIds
from gateway.disagg.route import Route
from gateway.types import Clock

APART = 5.0
"""Seconds for which two engines are not paired after a handover between them has failed at the
decode engine; doubled each time in a row."""
MAX_APART = 300.0


class Protocols(Protocol):
    """What is known of how each backend hands caches over."""

    def connector(self, id: str) -> Connector | None:
        """None: it hands over nothing."""

    def side(self, id: str) -> Side: ...

    def serves_alone(self, id: str) -> bool:
        """Whether a backend serves requests that come without a handover."""


class NoProtocols:
    """Where no backend hands anything over."""

    def connector(self, id: str) -> Connector | None:
        return None

    def side(self, id: str) -> Side:
        raise KeyError(id)

    def serves_alone(self, id: str) -> bool:
        return True


class _Apart:
    __slots__ = ("seconds", "until")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.until = 0.0


class Pairs:
    """Pairs that the engines themselves speak against are never made; those whose handovers fail
    are left alone for a while, as one engine's breaker can not tell them from others."""

    def __init__(self, protocols: Protocols, clock: Clock) -> None:
        self.protocols = protocols
        self._ids = PairingIds()
        self._clock = clock
        self._apart: dict[tuple[str, str], _Apart] = {}

    def connector(self, prefill: str, decode: str) -> Connector | None:
        """How a handover between two backends goes, by their ids; None when there is to be none."""
        protocols = self.protocols
        connector = protocols.connector(decode)
        if connector is None or prefill == decode:
            return None
        other = protocols.connector(prefill)
        if other is None or other.name != connector.name:
            return None
        apart = self._apart.get((prefill, decode))
        if apart is not None and apart.until > self._clock():
            return None
        if connector.mismatch(protocols.side(prefill), protocols.side(decode)) is not None:
            return None
        return connector

    def pair(self, route: Route, prefill: str, decode: str) -> Pairing:
        """A pairing of two backends that has never been used."""
        side = self.protocols.side
        return self._ids.pair(route, side(prefill), side(decode))

    def failed(self, prefill: str, decode: str) -> None:
        """A decode engine has failed on what the other one handed over."""
        apart = self._apart.setdefault((prefill, decode), _Apart())
        now = self._clock()
        if apart.until <= now:  # not of several that failed together
            apart.seconds = min(MAX_APART, 2 * apart.seconds or APART)
            apart.until = now + apart.seconds

    def worked(self, prefill: str, decode: str) -> None:
        self._apart.pop((prefill, decode), None)

    def forget(self, id: str) -> None:
        """A backend is gone."""
        for pair in [pair for pair in self._apart if id in pair]:
            del self._apart[pair]
