"""What is left at a prefill engine when a handover is over.

Each prompt that one computes ends in one of three ways: a decode engine has it, or sees to it; its
engine is told to let go of it; or it is counted as orphaned. Nothing else can be said of it.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class Holding(Enum):
    """What a prefill engine holds for a decode leg that will not come."""

    NOTHING = auto()
    """It has not computed the prompt, or holds it for a decode engine that sees to it."""
    UNCLEAR = auto()
    """It may have computed it: no word of it has come."""
    COMPUTED = auto()
    """It has said so, or has begun to."""


class Orphaned(StrEnum):
    """Why an engine was not told to let go. Also a metric label."""

    PROTOCOL = "protocol"
    """The protocol has no word for it, or what would have to be named has not come."""
    FAILED = "failed"
    """What tells it so could not be sent, or was not answered."""
    UNCLEAR = "unclear"
    """As `PROTOCOL`, and nobody knows whether it has the prompt, or has it still."""
