"""What the admin API asks of a gateway, in the words of the design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    Explanation,
    IndexView,
    KeyView,
    PolicyView,
    PoolView,
    ReloadView,
    RequestView,
)
from gateway.config import BackendConfig, PolicyConfig, Scheduling, Settings
from gateway.fleet.backend import BackendPatch


class Control(Protocol):
    """Everything is answered from memory, at once.

    An unknown backend id raises `gateway.fleet.fleet.UnknownBackend`, a value that cannot be
    accepted `gateway.config.ConfigError`; then nothing has changed.
    """

    def backends(self) -> list[BackendView]: ...

    def backend(self, id: str) -> BackendView: ...

    def add_backend(self, config: BackendConfig) -> tuple[BackendView, bool]:
        """The backend, and whether it is new rather than merged into one that was there."""

    def patch_backend(self, id: str, patch: BackendPatch) -> BackendView: ...

    def drain_backend(self, id: str, on: bool) -> BackendView:
        """Stop sending to a backend, or with `on` false start again. Twice is as good as once."""

    def remove_backend(self, id: str) -> None:
        """Forget a backend. Requests that it is working on are still answered."""

    def discovery(self) -> list[DiscoveryView]:
        """The configured sources of backends."""

    def policies(self) -> list[PolicyView]: ...

    def policy(self) -> PolicyConfig:
        """The one that decides now, with all its parameters."""

    def set_policy(self, policy: PolicyConfig) -> PolicyConfig:
        """Have another policy decide, from the next release on."""

    def scheduling(self) -> Scheduling:
        """The limits, shares and targets that hold now."""

    def set_scheduling(self, scheduling: Scheduling) -> None:
        """Have others hold from now on, also for what waits."""

    def explain(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Explanation:
        """What would be done with a request now. Nothing is sent, booked or counted."""

    def index_stats(self) -> IndexView: ...

    def flush_index(self, backend: str | None, model: str | None) -> IndexView:
        """Forget what is believed to be cached: of one backend, of one model, or all."""

    def queues(self) -> list[PoolView]: ...

    def requests(self) -> list[RequestView]:
        """Those under way, the oldest first."""

    def keys(self) -> list[KeyView]:
        """API keys, in the settings' order; never the keys themselves nor their hashes."""

    def settings(self) -> Settings:
        """Those that hold now. The admin API takes the secrets out before it shows them."""

    async def reload(self) -> ReloadView:
        """Load the config file anew. The one call that waits for something."""
