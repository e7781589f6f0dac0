"""What a dispatched request holds of its backend."""

from __future__ import annotations

from gateway.scheduling.load import BackendLoad
from gateway.types import Decision, WorkClass


class Lease:
    """Taken when it is made, given back by `release`; in between, `first_token` ends the prefill.

    Both may be called in any order and any number of times, from any exit path: each part goes
    back once. What comes free is offered to waiting tickets before the call returns.

    Attributes:
        decision: where the request goes, and why.
        work_class: the class whose limits it counts against.
        prompt_tokens: what it occupies of the KV cache.
        uncached_tokens: what it brings to prefill at the chosen backend.
        granted_at: seconds, on the pool's clock.
        queue_seconds: how long it waited.
        prefill_due: when its prefill should be done, behind what was pending at the backend.
    """

    __slots__ = (
        "_held",
        "_load",
        "_own",
        "_pending",
        "decision",
        "granted_at",
        "prefill_due",
        "prompt_tokens",
        "queue_seconds",
        "uncached_tokens",
        "work_class",
    )

    def __init__(
        self,
        load: BackendLoad,
        decision: Decision,
        work_class: WorkClass,
        prompt_tokens: int,
        uncached_tokens: int,
        granted_at: float,
        queue_seconds: float,
    ) -> None:
        self.decision = decision
        self.work_class = work_class
        self.prompt_tokens = prompt_tokens
        self.uncached_tokens = uncached_tokens
        self.granted_at = granted_at
        self.queue_seconds = queue_seconds
        self._load = load
        self._own = load.of(work_class)
        self._pending = True
        self._held = True
        load.take(self._own, prompt_tokens, uncached_tokens)
        self.prefill_due = granted_at + load.pending_tokens / load.prefill_rate

    @property
    def backend_id(self) -> str:
        return self.decision.backend

    def first_token(self) -> None:
        """The prefill is done: its tokens no longer count as pending work."""
        if not self._pending:
            return
        self._pending = False
        load = self._load
        load.finish_prefill(self._own, self.uncached_tokens)
        load.decoding += 1
        load.room_came_free()

    def release(self) -> None:
        """The request has ended, in whatever way."""
        if not self._held:
            return
        self._held = False
        load = self._load
        if self._pending:
            self._pending = False
            load.finish_prefill(self._own, self.uncached_tokens)
        else:
            load.decoding -= 1
        load.give_back(self._own, self.prompt_tokens)
        load.room_came_free()
