"""What operators said of one backend over the admin API."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from gateway.config import BackendConfig
from gateway.fleet.backend import BackendPatch


class Standing(BackendPatch, frozen=True):
    """What was not said is unset. What was patched holds before what `added` says."""

    added: BackendConfig | UnsetType = UNSET
    drained: bool | UnsetType = UNSET
    removed: bool | UnsetType = UNSET

    def patch(self) -> dict[str, Any]:
        """What was patched, by name."""
        values = {name: getattr(self, name) for name in BackendPatch.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}
