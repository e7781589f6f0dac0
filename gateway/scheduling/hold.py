"""Why a request is not sent on at once."""

from __future__ import annotations

from enum import StrEnum


class Hold(StrEnum):
    GATE = "gate"
    """Enough prefill is pending at the backend."""
    MEMORY = "memory"
    """Its KV cache has no room for the prompt."""
    STREAMS = "streams"
    """The prefill would make too many of its streams miss their pace."""
