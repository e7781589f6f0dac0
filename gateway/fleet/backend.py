"""One backend: what the operator said of it, what it says of itself, and how it is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from xxhash import xxh3_64_hexdigest

from gateway.config import BackendConfig, BreakerConfig, ConfigError, Count, Section
from gateway.fleet.access import OPEN, Access
from gateway.fleet.address import Address
from gateway.fleet.breaker import Breaker, BreakerState, Trials
from gateway.fleet.facts import EngineFacts
from gateway.types import Clock, EngineKind, Role

ID_DIGITS = 12


class BackendState(StrEnum):
    STARTING = "starting"
    """Not yet seen to serve."""
    HEALTHY = "healthy"
    EJECTED = "ejected"
    """Probes or requests failed there. It comes back by itself when a probe succeeds, or when the
    breaker's time is up."""
    DRAINING = "draining"
    """Taken out through the admin API, or no source names it any more: finishes what it has and
    gets nothing new."""
    REMOVED = "removed"
    """No longer of the fleet. Final: the same address added again is another backend."""


class Source(StrEnum):
    """Who named a backend. Where several did, what one says holds before those below it."""

    CONFIG = "config"
    ADMIN = "admin"
    FILE = "file"
    KUBERNETES = "kubernetes"
    DNS = "dns"


class BackendPatch(Section, frozen=True):
    """A change to a backend. What is left out stays; null means: as the engine says."""

    role: Role | UnsetType = UNSET
    models: Annotated[list[str], Meta(min_length=1)] | UnsetType | None = UNSET
    capacity_tokens: Count | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """What it changes, by name."""
        values = msgspec.structs.asdict(self)
        return {name: value for name, value in values.items() if value is not UNSET}


class Backend:
    """Written by the `Fleet` alone; everybody else reads.

    Attributes:
        id: opaque and stable: the same for this address in every replica and after every restart.
        address: where it listens.
        access: how it is reached.
        config: what the operator said of it.
        source: who named it.
        facts: what the engine said when it was last seen to serve; None before.
        condition: its state as probes see it.
        breaker: what the requests there show.
        busy: while it said of late that it has too much to do; the permits of those that go there
            nevertheless, because no other backend can serve them.
        busy_since, busy_until: when it said so, and when that is forgotten.
        draining: whether it is taken out on purpose.
        unlisted: whether no source names it any more; it is removed unless one does again soon.
        since: when `state` became what it is, seconds on the gateway's clock.
        failed_probes: in a row.
        failing_since: when the first of them failed.
        doubted: the next good probe may find another process there than the last one did.
        work: a count that never falls within one process, as its page last told it; None before.
    """

    __slots__ = (
        "access",
        "address",
        "breaker",
        "busy",
        "busy_since",
        "busy_until",
        "condition",
        "config",
        "doubted",
        "draining",
        "facts",
        "failed_probes",
        "failing_since",
        "health_cause",
        "id",
        "since",
        "source",
        "unlisted",
        "work",
    )

    def __init__(
        self,
        config: BackendConfig,
        source: Source,
        clock: Clock,
        breaker: BreakerConfig,
    ) -> None:
        """Raises:
        ConfigError: no usable address or no usable model name.
        """
        self.address = Address.parse(config.url)
        self.id = id_of(self.address)
        check_models(config.models)
        self.access: Access = OPEN
        self.config = config
        self.source = source
        self.facts: EngineFacts | None = None
        self.condition = BackendState.STARTING
        self.breaker = Breaker(breaker, clock)
        self.busy: Trials | None = None
        self.busy_since = 0.0
        self.busy_until = 0.0
        self.draining = False
        self.unlisted = False
        self.since = clock()
        self.health_cause = "not probed yet"
        self.failed_probes = 0
        self.failing_since = 0.0
        self.doubted = False
        self.work: float | None = None

    @property
    def state(self) -> BackendState:
        out = self.draining or self.unlisted
        if out and self.condition is not BackendState.REMOVED:
            return BackendState.DRAINING
        if self.condition is BackendState.HEALTHY and self.breaker.state is BreakerState.OPEN:
            return BackendState.EJECTED
        return self.condition

    @property
    def cause(self) -> str:
        """Why it is in its state, for people; "" when it is healthy and all is well."""
        if self.draining:
            return "taken out through the admin API"
        if self.unlisted:
            return "no source lists it any more"
        if self.condition is BackendState.HEALTHY and self.breaker.cause:
            return self.breaker.cause
        return self.health_cause

    @property
    def trials(self) -> Trials | None:
        """Permits that requests there need; None when they need none."""
        return self.breaker.trials or self.busy

    @property
    def kind(self) -> EngineKind | None:
        """None while it is not known."""
        return self.config.kind or (self.facts.kind if self.facts is not None else None)

    @property
    def role(self) -> Role:
        return self.config.role

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves, or served when last seen."""
        if self.config.models is not None:
            return tuple(self.config.models)
        return (self.facts.models if self.facts is not None else None) or ()

    @property
    def capacity_tokens(self) -> int | None:
        """Size of the KV cache, None while it is not known."""
        if self.config.capacity_tokens is not None:
            return self.config.capacity_tokens
        return self.facts.capacity_tokens if self.facts is not None else None

    def serves(self, model: str) -> bool:
        """Whether requests for a model can go there now."""
        return self.state is BackendState.HEALTHY and model in self.models


def id_of(address: Address) -> str:
    """A backend's id."""
    return xxh3_64_hexdigest(address.url.encode())[:ID_DIGITS]


def check_models(models: list[str] | None) -> None:
    """Raises:
    ConfigError: a list that names nothing, or a name in it that is empty or cannot be printed.
    """
    if models is not None and not (models and all(name and name.isprintable() for name in models)):
        raise ConfigError(
            f"backend models: got {models!r}, expected at least one name, of characters that can be"
            " printed, or null to ask it",
            field="models",
        )
