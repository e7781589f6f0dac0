"""One request inside an engine."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from loadtests.sim.cache import Key


@dataclass(slots=True, frozen=True)
class Request:
    """What an engine is asked to do.

    Attributes:
        input_tokens: prompt tokens, at least 1.
        output_tokens: tokens to generate; 0 computes the prompt only.
        prefix: per unit of the engine's `unit_tokens`, the hash of everything up to its end, for
            the prompt and, as far as it is known, for the output after it. What lies beyond
            cannot be reused by other requests.
    """

    input_tokens: int
    output_tokens: int
    prefix: Sequence_[Key] = ()


class Listener(Protocol):
    """Told of a request's progress, `now` being the engine's time. May submit and abort."""

    def on_first_token(self, now: float) -> None: ...
    def on_token(self, now: float) -> None:
        """A later token. Only engines that run step by step say this."""

    def on_finish(self, now: float) -> None:
        """After the last token. Not called for a request that was aborted."""


Fetch = Callable[["Sequence"], None]
"""Is to end in a call of `Engine.received`."""


class State(Enum):
    WAITING = "waiting"
    RECEIVING = "receiving"
    """It has its blocks, and what they are to hold is on its way from another engine."""
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


class Sequence:
    """A request's state. Callers read what has a docstring; the rest is the engine's.

    Attributes:
        target: tokens to prefill: the prompt, and after a preemption the output so far too.
        computed: of those, how many the KV cache holds.
        fetch: told once its blocks are reserved, where another engine computes the prompt.
        keeps: whether its blocks stay when it ends, for another engine to fetch.
        names: units of the cache in use under their names, in prompt order.
        considered: units that were named, or found to be there already.
        since: steps the engine had done when this one began to decode.
        finish_at: steps after which the last token is out.
    """

    __slots__ = (
        "admitted",
        "arrival",
        "cached_tokens",
        "computed",
        "considered",
        "fetch",
        "finish_at",
        "first_token",
        "generated",
        "keeps",
        "listener",
        "names",
        "preemptions",
        "request",
        "since",
        "state",
        "stopping",
        "target",
    )

    def __init__(
        self,
        request: Request,
        listener: Listener,
        arrival: float,
        fetch: Fetch | None = None,
        keeps: bool = False,
    ) -> None:
        self.request = request
        self.listener = listener
        self.state = State.WAITING
        self.arrival = arrival
        self.fetch = fetch
        self.keeps = keeps
        """Seconds, like the next two."""
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.cached_tokens = 0
        """Prompt tokens found in the cache when it was first admitted."""
        self.preemptions = 0
        self.generated = 0
        self.target = 0
        self.computed = 0
        self.names: list[Key] = []
        self.considered = 0
        self.since = 0
        self.finish_at = 0
        self.stopping = False
