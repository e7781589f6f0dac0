"""What became of one request of a replay."""

from __future__ import annotations

from gateway.types import WorkClass


class Result:
    """Filled while the request passes through; times in seconds of virtual time.

    Attributes:
        engine: place of the engine that served it; -1 when none did.
        cold_seconds: its prefill alone on an idle engine with an empty cache.
        prefill_seconds: what its prefill took of the engine that served it.
        predicted_tokens: what the gateway expected to be cached there.
        cached_tokens: what was.
        first, last: when its first and its last token came; None when it was refused.
    """

    __slots__ = (
        "arrival",
        "cached_tokens",
        "cold_seconds",
        "engine",
        "first",
        "input_tokens",
        "last",
        "output_tokens",
        "predicted_tokens",
        "prefill_seconds",
        "queue_seconds",
        "refusal",
        "work_class",
    )

    def __init__(
        self, arrival: float, input_tokens: int, output_tokens: int, cold_seconds: float
    ) -> None:
        self.arrival = arrival
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cold_seconds = cold_seconds
        self.work_class = WorkClass.DECODE
        self.engine = -1
        self.queue_seconds = 0.0
        self.predicted_tokens = 0.0
        self.cached_tokens = 0
        self.prefill_seconds = 0.0
        self.first: float | None = None
        self.last: float | None = None
        self.refusal: str | None = None

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.arrival

    @property
    def tpot(self) -> float | None:
        """None without two tokens."""
        if self.first is None or self.last is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)
