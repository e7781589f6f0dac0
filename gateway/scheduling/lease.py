"""What a dispatched request holds of its backend."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gateway.scheduling.load import BackendLoad
from gateway.scheduling.streams import OutputLengths
from gateway.types import Clock, Decision, WorkClass


class Lease:
    """Taken when it is made, given back by `release`; in between, `first_token` ends the prefill.

    Both may be called in any order and any number of times, from any exit path: each part goes
    back once. What comes free is offered to waiting tickets before the call returns.

    Args:
        on_release: told once, when it is given back.
        lengths: learns how long the answer was.
        anchor: names the part of the prompt that is cached; those in flight that have the same
            anchor share it.

    Attributes:
        decision: where the request goes, and why.
        work_class: the class whose limits it counts against.
        prompt_tokens: what it occupies of the KV cache.
        uncached_tokens: what it brings to prefill at the chosen backend.
        prefill_seconds: the same as time.
        granted_at: seconds, on the pool's clock.
        queue_seconds: how long it waited.
        trial: the permit it holds of a backend that is not trusted yet; None elsewhere.
        prefill_due: when its prefill should be done, behind what was pending at the backend.
        output_tokens: generated in all, to be set before the release where it is known.
        progress: tells the tokens generated so far, where somebody counts them. Without it the
            answer's pace is nobody's concern.
        began: when its first token came.
    """

    __slots__ = (
        "_clock",
        "_held",
        "_lengths",
        "_load",
        "_on_release",
        "_own",
        "_pending",
        "began",
        "decision",
        "granted_at",
        "output_tokens",
        "prefill_due",
        "prefill_seconds",
        "progress",
        "prompt_tokens",
        "queue_seconds",
        "trial",
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
        prefill_seconds: float,
        clock: Clock,
        queue_seconds: float = 0.0,
        on_release: Callable[[Lease], None] | None = None,
        lengths: OutputLengths | None = None,
        anchor: bytes = b"",
    ) -> None:
        self.decision = decision
        self.work_class = work_class
        self.prompt_tokens = prompt_tokens
        self.uncached_tokens = uncached_tokens
        self.prefill_seconds = prefill_seconds
        self.granted_at = now = clock()
        self.queue_seconds = queue_seconds
        self.output_tokens = 0
        self.progress: Callable[[], int] | None = None
        self.began = inf
        self._lengths = lengths
        self._clock = clock
        self._load = load
        self._own = load.of(work_class)
        self._pending = True
        self._held = True
        self._on_release = on_release
        self.trial = load.trials
        if self.trial is not None:
            self.trial.take()
        load.take(self, self._own, prompt_tokens, uncached_tokens, prefill_seconds, now, anchor)
        self.prefill_due = now + load.pending_seconds(now)
        if load.journal is not None:
            load.journal.taken(self, anchor)

    @property
    def backend_id(self) -> str:
        return self.decision.backend

    def hand_over(self, load: BackendLoad, anchor: bytes) -> Lease:
        """A lease at another backend for the answer, so that this one is for the prompt alone. What
        is learnt of the answer, and charged for it, goes over with it."""
        lease = Lease(
            load,
            Decision(load.id, self.decision.reason),
            WorkClass.DECODE,
            self.prompt_tokens,
            0,
            0.0,
            self._clock,
            self.queue_seconds,
            self._on_release,
            self._lengths,
            anchor,
        )
        self._on_release = self._lengths = None
        return lease

    def reprice(self, uncached_tokens: int, prefill_seconds: float) -> None:
        """Say anew what it brings to prefill, where another engine does it, or was to and did not.

        Nothing happens once the prefill is done.
        """
        if not self._pending:
            return
        load, now = self._load, self._clock()
        added = uncached_tokens - self.uncached_tokens
        load.reprice(self, self._own, added, prefill_seconds, now)
        self.uncached_tokens = uncached_tokens
        self.prefill_seconds = prefill_seconds
        self.prefill_due = now + load.pending_seconds(now)
        load.room_came_free()

    def first_token(self) -> None:
        """The prefill is done: its tokens no longer count as pending work."""
        if not self._pending:
            return
        self._end_prefill(done=True)
        self._load.decoding += 1
        self.began = self._clock()
        if self.progress is not None and self._lengths is not None:
            self._load.streams.add(self, self._lengths, self.progress)
        if self._load.journal is not None:
            self._load.journal.began(self)
        self._load.room_came_free()

    def release(self) -> None:
        """The request has ended, in whatever way."""
        if not self._held:
            return
        self._held = False
        load = self._load
        if self._pending:
            self._end_prefill(done=False)
        else:
            load.decoding -= 1
            load.streams.remove(self)
            if self._lengths is not None and self.output_tokens:
                self._lengths.learn(self.output_tokens)
        if self.trial is not None:
            self.trial.give_back()
        load.give_back(self, self._own)
        if load.journal is not None:
            load.journal.ended(self)
        if self._on_release is not None:
            self._on_release(self)
        load.room_came_free()

    def _end_prefill(self, *, done: bool) -> None:
        self._pending = False
        self._load.finish_prefill(self, self._own, self.uncached_tokens, self._clock(), done=done)
