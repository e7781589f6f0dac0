"""Which prefill engine may work for which decode engine."""

from __future__ import annotations

import logging

from gateway.config import KINDS, Disagg
from gateway.disagg.connector import Connector, Pairing, Side
from gateway.disagg.connectors import CONNECTORS
from gateway.disagg.ids import PairingIds
from gateway.disagg.route import Route
from gateway.disagg.sides import side_of
from gateway.fleet.backend import Backend
from gateway.types import Clock, EngineKind, Role

APART = 5.0
"""Seconds for which two engines are not paired after `FAILURES` handovers between them have failed
at the decode engine, or with both of them silent; doubled for each further one in a row."""
FAILURES = 2
MAX_APART = 300.0
MAX_TOLD = 64
"""Reasons why engines do not fit that are remembered as logged."""

logger = logging.getLogger("prefixgate.disagg")


class _Apart:
    __slots__ = ("failures", "seconds", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.seconds = 0.0
        self.until = 0.0


class Pairs:
    """Pairs that the engines themselves speak against are never made; those whose handovers fail
    are left alone for a while, as one engine's breaker can not tell them from others."""

    def __init__(self, settings: Disagg, clock: Clock) -> None:
        self._settings = settings
        self._ids = PairingIds()
        self._clock = clock
        self._apart: dict[tuple[str, str], _Apart] = {}
        self._matching: dict[tuple[str, str], bool] = {}
        """What was found out about pairs since the last change."""
        self._told: set[str] = set()
        self._engine_ids: dict[str, tuple[str, ...]] = {}

    def speaks(self, backend: Backend) -> Connector | None:
        """How a backend hands caches over; None when it does not."""
        name = self._settings.connector_of(backend.config)
        return None if name is None else CONNECTORS[name]

    def serves_alone(self, backend: Backend) -> bool:
        """Whether a backend may be sent requests that are not handed over."""
        connector = self.speaks(backend)
        return connector is None or (connector.alone and self._settings.fallback == "plain")

    def side(self, backend: Backend) -> Side:
        """What a backend is to the other one of a pair."""
        return side_of(backend, self._engine_ids.get(backend.id, ()))

    def learn(self, id: str, engine_ids: tuple[str, ...]) -> bool:
        """Take note of what an engine's ranks are called.

        Returns:
            Whether that is new.
        """
        if not engine_ids or self._engine_ids.get(id) == engine_ids:
            return False
        self._engine_ids[id] = engine_ids
        self._matching.clear()
        return True

    def matches(self, prefill: Backend, decode: Backend) -> bool:
        """Whether caches can be handed over from one backend to another at all."""
        pair = prefill.id, decode.id
        matching = self._matching.get(pair)
        if matching is None:
            matching = self._matching[pair] = self._match(prefill, decode)
        return matching

    def _match(self, prefill: Backend, decode: Backend) -> bool:
        connector = self.speaks(decode)
        if (
            connector is None
            or (prefill.role, decode.role) != (Role.PREFILL, Role.DECODE)
            or set(prefill.models).isdisjoint(decode.models)
            or connector is not self.speaks(prefill)
        ):
            return False
        mismatch = _other_kind(connector, prefill, decode) or connector.mismatch(
            self.side(prefill), self.side(decode)
        )
        if mismatch is not None:
            self._tell(prefill.id, decode.id, mismatch)
        return mismatch is None

    def _tell(self, prefill: str, decode: str, mismatch: str) -> None:
        """Log why two engines are not paired; of all that are not for the same reason, the first.
        A fleet that is being updated has thousands of them."""
        if mismatch in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told.add(mismatch)
        logger.warning(
            "backend %s hands nothing over to backend %s, nor do others like them: %s",
            prefill,
            decode,
            mismatch,
        )

    def connector(self, prefill: Backend, decode: Backend) -> Connector | None:
        """How a handover between two backends goes; None when there is to be none now."""
        if not self.matches(prefill, decode):
            return None
        apart = self._apart.get((prefill.id, decode.id))
        if apart is not None and apart.until > self._clock():
            return None
        return self.speaks(decode)

    def pair(self, route: Route, prefill: Backend, decode: Backend) -> Pairing:
        """A pairing of two backends that has never been used."""
        return self._ids.pair(route, self.side(prefill), self.side(decode))

    def failed(self, prefill: str, decode: str) -> None:
        """A decode engine has failed on what the other one handed over, or nothing came of both."""
        apart = self._apart.setdefault((prefill, decode), _Apart())
        apart.failures += 1
        now = self._clock()
        if apart.failures >= FAILURES and apart.until <= now:  # once for all that fail together
            apart.seconds = min(MAX_APART, 2 * apart.seconds or APART)
            apart.until = now + apart.seconds
            logger.warning(
                "handovers from backend %s to backend %s fail, %d times in a row: not paired for"
                " %.0f s",
                prefill,
                decode,
                apart.failures,
                apart.seconds,
            )

    def worked(self, prefill: str, decode: str) -> None:
        """A decode engine has answered from what the other one handed over."""
        apart = self._apart.pop((prefill, decode), None)
        if apart is not None and apart.seconds:
            logger.info("backend %s takes over from backend %s again", decode, prefill)

    def changed(self) -> None:
        """Something else is known of a backend, or it is new."""
        self._matching.clear()

    def forget(self, id: str) -> None:
        """A backend is gone."""
        self._engine_ids.pop(id, None)
        for pair in [pair for pair in self._apart if id in pair]:
            del self._apart[pair]


def _other_kind(connector: Connector, *backends: Backend) -> str | None:
    """Why engines that have said what they are do not speak a protocol, for people."""
    for backend in backends:
        kind = backend.kind
        if kind not in (None, EngineKind.OPENAI) and kind not in KINDS[connector.name]:
            return f"{kind} does not speak {connector.name}"
    return None
