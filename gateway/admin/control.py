"""What the admin API asks of a gateway, in the words of the design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    Explanation,
    IndexView,
    KeyView,
    NewKeyView,
    OverridesView,
    PolicyView,
    PoolView,
    ReloadView,
    RequestView,
)
from gateway.config import BackendConfig, NewKey, PolicyConfig, Scheduling, Settings
from gateway.disagg.report import ModelReport
from gateway.fleet.backend import BackendPatch


class UnknownKey(LookupError):
    """There is no API key of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no API key {name[:64]!r}.")


class Control(Protocol):
    """Everything is answered from memory, at once. Changes hold at once, and then wait a little
    for Redis to take them.

    An unknown backend id raises `gateway.fleet.fleet.UnknownBackend`, an unknown key `UnknownKey`,
    a value that cannot be accepted `gateway.config.ConfigError`; then nothing has changed.
    """

    def backends(self) -> list[BackendView]:
        """Those of the config in its order, then the others by their addresses."""

    def backend(self, id: str) -> BackendView: ...

    async def add_backend(self, config: BackendConfig) -> tuple[BackendView, bool]:
        """The backend, and whether it is new rather than merged into one that was there."""

    async def patch_backend(self, id: str, patch: BackendPatch) -> BackendView: ...

    async def drain_backend(self, id: str, on: bool) -> BackendView:
        """Stop sending to a backend, or with `on` false start again. Twice is as good as once."""

    async def remove_backend(self, id: str) -> None:
        """Forget a backend. Requests that it is working on are still answered."""

    def discovery(self) -> list[DiscoveryView]:
        """The configured sources of backends."""

    def policies(self) -> list[PolicyView]: ...

    def policy(self) -> PolicyConfig:
        """The one that decides now, with all its parameters."""

    async def set_policy(self, policy: PolicyConfig) -> PolicyConfig:
        """Have another policy decide, from the next release on."""

    def scheduling(self) -> Scheduling:
        """The limits, shares and targets that hold now."""

    async def set_scheduling(self, scheduling: Scheduling) -> Scheduling:
        """Have others hold from now on, also for what waits."""

    def explain(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Explanation:
        """What would be done with a request now. Nothing is sent, booked or counted."""

    def index_stats(self) -> IndexView: ...

    def flush_index(self, backend: str | None, model: str | None) -> IndexView:
        """Forget what is believed to be cached: of one backend, of one model, or all."""

    def queues(self) -> list[PoolView]: ...

    def disagg(self) -> list[ModelReport]:
        """What is seen of prefill and decode apart, and whether it pays, by model."""

    def requests(self) -> list[RequestView]:
        """Those under way, the oldest first."""

    def keys(self) -> list[KeyView]:
        """API keys, in the settings' order; never the keys themselves nor their hashes."""

    async def add_key(self, options: NewKey) -> NewKeyView:
        """Make an API key."""

    async def patch_key(self, name: str, options: Mapping[str, Any]) -> KeyView:
        """Args:
        options: those that change, as plain data.
        """

    async def remove_key(self, name: str) -> None:
        """Forget a key that was made over the admin API."""

    def overrides(self) -> OverridesView:
        """What was set over the admin API."""

    async def drop_overrides(self, section: str) -> OverridesView:
        """Go back to what the settings say.

        Args:
            section: policy, scheduling, backends or keys.
        """

    @property
    def shared(self) -> bool | None:
        """Whether all replicas can have what was changed here; None where each is by itself."""

    def settings(self) -> Settings:
        """Those that hold now. The admin API takes the secrets out before it shows them."""

    async def reload(self) -> ReloadView:
        """Load the config file anew."""
