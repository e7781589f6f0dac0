"""When a backend counts as failing, and what is done then."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.config.base import Count, Seconds, Section, Share


class Health(Section, frozen=True):
    interval: Seconds = 5.0
    timeout: Seconds = 2.0
    unhealthy_after: Count = 3
    """Probes that failed in a row, which eject a backend."""
    probes: bool = True
    """Whether backends are asked how they are. Without, each must name its models, and requests
    alone show what works."""
    load_interval: Seconds | None = 2.0
    """Between two readings of what an engine says of its load, where it says it. What it runs
    beyond what was sent there counts as load too; what it said five intervals ago does not. null
    asks nobody: backends then go by what was sent there."""


class BreakerConfig(Section, frozen=True):
    """When a backend at which requests fail gets no more of them, and how it is tried again."""

    failures: Count = 5
    """Opens the breaker when they come in a row, or make up the share within the window."""
    window: Seconds = 30.0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Of the requests in the window."""
    open: Seconds = 5.0
    """How long it stays open before trials; doubled each time they fail, and when it opens again
    within a window of closing."""
    max_open: Seconds = 30.0
    trials: Count = 1
    """Requests at a time while it is to be seen whether the backend serves again."""

    def __post_init__(self) -> None:
        if self.max_open < self.open:
            raise ValueError(
                f"max_open: got {self.max_open}, expected at least open, which is {self.open}"
            )


class Backpressure(Section, frozen=True):
    """A backend that answers 429, 503 or 529 is avoided where others serve the model."""

    avoid: Seconds = 1.0
    """For how long, when it does not say so in Retry-After."""
    max_avoid: Seconds = 10.0
    """However long it says."""
    trials: Count = 8
    """Requests at a time meanwhile, where no other backend serves the model."""


class ModelTimeouts(Section, frozen=True):
    """Limits of one model; what is null is as for all others."""

    connect: Seconds | None = None
    first_byte: Seconds | None = None
    prefill_first_byte: Seconds | None = None
    idle: Seconds | None = None
    total: Seconds | None = None


class Timeouts(Section, frozen=True):
    connect: Seconds = 5.0
    first_byte: Seconds = 600.0
    prefill_first_byte: Seconds | None = None
    """The same for requests of the prefill class; null when it is the same."""
    idle: Seconds = 120.0
    """Between two reads of a response."""
    total: Seconds | None = None
    """From a request's arrival to the end of its answer."""
    models: dict[str, ModelTimeouts] = {}
    """By model."""


class Retries(Section, frozen=True):
    """Before the first byte of an answer, on another backend. Never after it."""

    max_retries: Annotated[int, Meta(ge=0, le=10)] = 2
    """Further backends that one request may be sent to."""
    budget: Share = 0.2
    """Retries per request in the long run, over all requests."""
    after_timeout: bool = False
    """Whether a request whose answer did not begin in time is sent to another backend: the first
    one may still be at work on it, and the client waits all over again."""
