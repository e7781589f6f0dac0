"""What an engine tells about its own work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the engine started."""

    steps: int = 0
    prompt_tokens: int = 0
    """Of requests that were admitted, each once."""
    cached_tokens: int = 0
    """Of those, found in the cache."""
    prefilled_tokens: int = 0
    """Computed, recomputation after a preemption included."""
    received_tokens: int = 0
    """Of prompts, computed by other engines."""
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    expired: int = 0
    """Finished prefills that nobody fetched in time."""


@dataclass(slots=True, frozen=True)
class Step:
    """What was done since the last report: one step, or several like ones.

    Attributes:
        seconds: how long it took.
        decoding: sequences that got a further token in each step.
        prefilled: prompt tokens computed.
        end: the engine's time at its end; the timeline may be later.
    """

    steps: int
    seconds: float
    decoding: int
    prefilled: int
    end: float
