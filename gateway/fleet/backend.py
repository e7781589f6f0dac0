"""One backend: what the operator said of it, what it says of itself, and how it is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from xxhash import xxh3_64_hexdigest

from gateway.config import BackendConfig, ConfigError, Count, Section
from gateway.fleet.address import Address
from gateway.fleet.facts import EngineFacts
from gateway.types import EngineKind, Role

ID_DIGITS = 12


class BackendState(StrEnum):
    STARTING = "starting"
    """Not yet seen to serve."""
    HEALTHY = "healthy"
    EJECTED = "ejected"
    """Failed too often in a row. It comes back by itself when a probe succeeds."""
    DRAINING = "draining"
    """Taken out through the admin API: finishes what it has and gets nothing new."""
    REMOVED = "removed"
    """No longer of the fleet. Final: the same address added again is another backend."""


class Source(StrEnum):
    """Who named a backend."""

    CONFIG = "config"
    ADMIN = "admin"


class BackendPatch(Section, frozen=True):
    """A change to a backend. What is left out stays; null means: as the engine says."""

    role: Role | UnsetType = UNSET
    models: Annotated[list[str], Meta(min_length=1)] | UnsetType | None = UNSET
    capacity_tokens: Count | UnsetType | None = UNSET


class Backend:
    """Written by the `Fleet` alone; everybody else reads.

    Attributes:
        id: opaque and stable: the same for this address in every replica and after every restart.
        address: where it listens.
        config: what the operator said of it.
        source: who named it.
        facts: what the engine said when it was last seen to serve; None before.
        condition: its state, were it not draining.
        draining: whether it is taken out on purpose.
        since: when `state` became what it is, seconds on the gateway's clock.
        failed_probes, failed_requests: failures of each sort in a row.
        doubted: the next good probe may find another process there than the last one did.
    """

    __slots__ = (
        "address",
        "condition",
        "config",
        "doubted",
        "draining",
        "facts",
        "failed_probes",
        "failed_requests",
        "health_cause",
        "id",
        "since",
        "source",
    )

    def __init__(self, config: BackendConfig, source: Source, now: float) -> None:
        """Raises:
        ConfigError: no usable address or no usable model name.
        """
        self.address = Address.parse(config.url)
        self.id = xxh3_64_hexdigest(self.address.url.encode())[:ID_DIGITS]
        check_models(config.models)
        self.config = config
        self.source = source
        self.facts: EngineFacts | None = None
        self.condition = BackendState.STARTING
        self.draining = False
        self.since = now
        self.health_cause = "not probed yet"
        self.failed_probes = 0
        self.failed_requests = 0
        self.doubted = False

    @property
    def state(self) -> BackendState:
        if self.draining and self.condition is not BackendState.REMOVED:
            return BackendState.DRAINING
        return self.condition

    @property
    def cause(self) -> str:
        """Why it is in its state, for people; "" when it is healthy and all is well."""
        return "taken out through the admin API" if self.draining else self.health_cause

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

    def patch(self, patch: BackendPatch) -> None:
        """Raises:
        ConfigError: an empty model name.
        """
        given = {
            name: value
            for name, value in msgspec.structs.asdict(patch).items()
            if value is not UNSET
        }
        check_models(given.get("models"))
        self.config = msgspec.structs.replace(self.config, **given)


def check_models(models: list[str] | None) -> None:
    """Raises:
    ConfigError: a list that names nothing, or an empty name in it.
    """
    if models is not None and (not models or "" in models):
        raise ConfigError(
            f"backend models: got {models!r}, expected at least one name, or null to ask it",
            field="models",
        )
