"""What was seen of one model in some time."""

from __future__ import annotations

from enum import StrEnum

from gateway.telemetry.sketch import Sketch


class Waste(StrEnum):
    """Why nobody fetched what a prefill leg had computed. Also a metric label."""

    CLIENT_LEFT = "client_left"
    NO_TRANSFER = "no_transfer"
    """Its answer gave the decode engine nothing to fetch."""
    EXPIRED = "expired"
    """It was too old by the time."""
    NOT_SENT = "not_sent"
    """The decode engine could not be sent to."""
    DECODE = "decode"
    """The decode engine failed before it had shown that it had it."""


class Span:
    """Attributes:
    requests: that a backend served.
    handovers: of these, the ones that were prefilled elsewhere.
    seconds: that they were at backends, added up.
    prompts: their tokens, as engines report them where they do.
    ttft: seconds from arrival to first content, of streams that one engine served.
    tpot: seconds per output token of these.
    handed_ttft: as `ttft`, of streams that were prefilled elsewhere.
    prefill, decode: seconds of an engine's time that they took, by its id.
    transfers: prompts that were fetched.
    moved_tokens, moved_bytes: of those, what the decode engines lacked; bytes only where the
        model's shape is known.
    predicted, observed: seconds of those transfers that could be seen.
    timed_tokens: what was moved by these.
    wasted: prefill legs that were for nothing, by why, and the seconds that they took.
    """

    __slots__ = (
        "decode",
        "handed_ttft",
        "handovers",
        "moved_bytes",
        "moved_tokens",
        "observed",
        "predicted",
        "prefill",
        "prompts",
        "requests",
        "seconds",
        "timed_tokens",
        "tpot",
        "transfers",
        "ttft",
        "wasted",
        "wasted_seconds",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.handovers = 0
        self.seconds = 0.0
        self.prompts = Sketch()
        self.ttft = Sketch()
        self.tpot = Sketch()
        self.handed_ttft = Sketch()
        self.prefill: dict[str, float] = {}
        self.decode: dict[str, float] = {}
        self.transfers = 0
        self.moved_tokens = 0.0
        self.moved_bytes = 0.0
        self.predicted = Sketch()
        self.observed = Sketch()
        self.timed_tokens = 0.0
        self.wasted: dict[Waste, int] = {}
        self.wasted_seconds = 0.0

    def take_in(self, other: Span) -> None:
        """Add what was seen in another time."""
        self.requests += other.requests
        self.handovers += other.handovers
        self.seconds += other.seconds
        self.prompts.take_in(other.prompts)
        self.ttft.take_in(other.ttft)
        self.tpot.take_in(other.tpot)
        self.handed_ttft.take_in(other.handed_ttft)
        for id, seconds in other.prefill.items():
            add(self.prefill, id, seconds)
        for id, seconds in other.decode.items():
            add(self.decode, id, seconds)
        self.transfers += other.transfers
        self.moved_tokens += other.moved_tokens
        self.moved_bytes += other.moved_bytes
        self.predicted.take_in(other.predicted)
        self.observed.take_in(other.observed)
        self.timed_tokens += other.timed_tokens
        for why, count in other.wasted.items():
            self.wasted[why] = self.wasted.get(why, 0) + count
        self.wasted_seconds += other.wasted_seconds


def add(sums: dict[str, float], key: str, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value
