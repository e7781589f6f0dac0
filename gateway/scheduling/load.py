"""What each backend has been given and has not finished: the ledger that leases write to."""

from __future__ import annotations

from collections.abc import Callable

from gateway.types import WorkClass

_PREFILL = WorkClass.PREFILL


class ClassLoad:
    """One class's share of a backend's ledger: what the limits of the class are held against.

    Attributes:
        in_flight: requests dispatched and not yet finished.
        pending: of those, the ones before their first token.
        uncached_tokens: uncached prompt tokens of the pending ones.
    """

    __slots__ = ("in_flight", "pending", "uncached_tokens")

    def __init__(self) -> None:
        self.in_flight = 0
        self.pending = 0
        self.uncached_tokens = 0


class BackendLoad:
    """One backend's ledger and measured rates; satisfies `policies.base.Candidate`.

    There is one for each backend, shared by all pools it belongs to, so that its limits hold over
    all of them. It outlives a backend's absence from a pool: leases still out go on counting.
    Entries are whole tokens, so that what a lease gives back is exactly what it took.

    Args:
        id: the backend's id.
        capacity_tokens: size of its KV cache.
        prefill_rate: uncached prompt tokens per second.
        step_seconds: one decode step with a single stream.
        stream_seconds: what each further stream adds to a step.
        context_seconds: what each token of context adds to a step.

    The rates' defaults are those of an 8B model in 16 bits on an A100.
    """

    __slots__ = (
        "_watchers",
        "capacity_tokens",
        "context_seconds",
        "context_tokens",
        "decode",
        "decoding",
        "id",
        "in_flight",
        "pending_tokens",
        "prefill",
        "prefill_rate",
        "step_seconds",
        "stream_seconds",
    )

    def __init__(
        self,
        id: str,
        *,
        capacity_tokens: float = 500_000.0,
        prefill_rate: float = 10_000.0,
        step_seconds: float = 8e-3,
        stream_seconds: float = 3e-5,
        context_seconds: float = 8e-8,
    ) -> None:
        self.id = id
        self.capacity_tokens = capacity_tokens
        self.prefill_rate = prefill_rate
        self.step_seconds = step_seconds
        self.stream_seconds = stream_seconds
        self.context_seconds = context_seconds
        self.in_flight = 0
        self.decoding = 0
        self.pending_tokens = 0
        self.context_tokens = 0
        self.prefill = ClassLoad()
        self.decode = ClassLoad()
        self._watchers: tuple[Callable[[], None], ...] = ()

    def of(self, work_class: WorkClass) -> ClassLoad:
        return self.prefill if work_class is _PREFILL else self.decode

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called whenever room comes free."""
        self._watchers = (*self._watchers, changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        self._watchers = tuple(watcher for watcher in self._watchers if watcher != changed)

    def take(self, own: ClassLoad, prompt_tokens: int, uncached_tokens: int) -> None:
        """Enter a dispatched request under its class's share `own`."""
        own.in_flight += 1
        own.pending += 1
        own.uncached_tokens += uncached_tokens
        self.in_flight += 1
        self.pending_tokens += uncached_tokens
        self.context_tokens += prompt_tokens

    def finish_prefill(self, own: ClassLoad, uncached_tokens: int) -> None:
        own.pending -= 1
        own.uncached_tokens -= uncached_tokens
        self.pending_tokens -= uncached_tokens

    def give_back(self, own: ClassLoad, prompt_tokens: int) -> None:
        """Strike out a request that is past its prefill or has just been struck from it."""
        own.in_flight -= 1
        self.in_flight -= 1
        self.context_tokens -= prompt_tokens

    def room_came_free(self) -> None:
        watchers = self._watchers
        if len(watchers) > 1:
            # Who is asked first gets the room: pools that share the backend take turns.
            self._watchers = (*watchers[1:], watchers[0])
        for changed in watchers:
            changed()
