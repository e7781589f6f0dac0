"""Simulated engines with roles, as placing sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.disagg.links import Links
from gateway.scheduling.load import BackendLoad
from gateway.types import Role
from policies.base import RouteRequest


class RoleEngines:
    """Satisfies `gateway.disagg.engines.Engines`: all of them work with each other and alone.

    Args:
        loads: those that there are now.
        pace: seconds per output token.
        pushed: what is computed is sent while the prefill goes on.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        loads: Callable[[], Sequence[BackendLoad]],
        links: Links,
        pace: float | None,
        *,
        pushed: bool,
    ) -> None:
        self._roles = roles
        self._loads = loads
        self._links = links
        self.pace = pace
        self._pushed = pushed

    def role(self, id: str) -> Role:
        return self._roles[id]

    def serves_alone(self, id: str) -> bool:
        return True

    def paired(self, prefill: str, decode: str, model: str) -> bool:
        return True

    def overlaps(self, decode: str) -> bool:
        return self._pushed

    def landings(self, request: RouteRequest) -> list[BackendLoad]:
        return [load for load in self._loads() if self._roles[load.id] is not Role.PREFILL]

    def links(self, model: str) -> Links:
        return self._links
