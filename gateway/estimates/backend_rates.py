"""How fast each backend really is, learnt from when first and last tokens come.

Two factors a backend, on an `EngineShape` that is given:

* prefill: seconds with some prefill pending, over what the prompts that got their first token in
  them should have taken, the steps' own time for the streams beside them included. So neither a
  step that finishes several prompts nor the decode of others is blamed on prefill.
* decode: steps that the shape would have made in the time without any prefill pending, over the
  steps that were made in it: a stream's tokens less the steps of the prefills it lived through.

Where there is hardly any time without prefill, decode is taken to be as slow as prefill. What a
backend was seen little of leans on the median of all.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

import msgspec

from gateway.estimates.factor import Factor
from gateway.estimates.shape import EngineShape

MAX_FACTOR = 4.0
"""A backend is believed to be at most this many times slower or faster than the median."""
PRIOR_SECONDS = 1.0
"""Expected seconds that the median counts for."""
_SAME_STEP = 2e-3
_SAMPLE_SECONDS = 0.5
"""A sample of prefill is at least this much in a row, or all there was. It is never a single
prompt of those that end in one step, of which the first seems slow and the others instant."""
_LEAST_SECONDS = 0.1
"""What is shorter than this is put together with what comes next."""
_WEAK = 0.25
_FULL = 0.9
_NO_STREAMS_SECONDS = 600.0


class _Prefill(msgspec.Struct, eq=False):
    """A request as it was dispatched.

    Attributes:
        work: seconds that its prefill should take.
        work_before: the same of everything that was ever dispatched before it.
    """

    began: float
    prompt_tokens: int
    uncached_tokens: int
    work: float
    work_before: float
    streamed: bool


class _Stream(msgspec.Struct, eq=False):
    """A request past its prefill, with the backend's counts as they were then.

    Attributes:
        steps: of the engine, all told.
    """

    prefill: _Prefill
    free_seconds: float
    free_steps: float
    prefill_steps: float
    steps: float


class BackendRates:
    """One backend's factors. Requests are told apart by any hashable id; what is told of one that
    is not known (any more) is ignored, so that every exit path may report.

    Attributes:
        prefill, decode: how many times as long as the shape it takes; 1 at first.
        capacity_tokens: of the KV cache. While the prompts in flight nearly fill it, requests
            wait for memory and not for work, and nothing is learnt about prefill.
    """

    def __init__(self, shape: EngineShape, capacity_tokens: float) -> None:
        self._shape = shape
        self.capacity_tokens = capacity_tokens
        self.prefill = 1.0
        self.decode = 1.0
        self._prefill = Factor()
        self._decode = Factor()
        self._pool_prefill = 1.0
        self._pool_decode = 1.0
        # An ordered one: taking heads of a plain dict slows down with what was taken before.
        self._pending: OrderedDict[object, _Prefill] = OrderedDict()
        self._streams: dict[object, _Stream] = {}

        self._now = 0.0
        self._since = 0.0
        """Since when the pending prefills have had the engine."""
        self._began_amid = False
        """They came in the middle of a decode step, which had to end first."""
        self._seen = 0
        """Of the pending, those whose first token will be seen."""
        self._group_tokens = 0
        self._group_steps = 0.0
        """Of the step that gave the last first token, and those before it of the same prompt."""
        self._last_first = float("-inf")
        self._due = inf
        """When the first of them is to be asked for, where nobody will tell that it is done."""
        self._observed = self._expected = 0.0
        """Seconds of prefill that make up the next sample."""
        self._whole_observed = self._whole_expected = 0.0
        """The same of answers that are not streamed."""

        self._prompt_tokens = 0
        """Of everything in flight."""
        self._stream_tokens = 0.0
        """Prompt tokens of the streams, less the steps done when each began."""
        self._free_seconds = 0.0
        """With streams and no prefill, and the steps that the shape would have made in it."""
        self._free_steps = 0.0
        self._prefill_steps = 0.0
        """Steps made while there was prefill."""
        self._steps = 0.0
        """All steps made, as far as can be told."""
        self._dispatched_work = 0.0

    @property
    def shape(self) -> EngineShape:
        """The shape with the factors in it."""
        return self._shape.slower(self.prefill, self.decode)

    # what happens

    def dispatched(
        self,
        id: object,
        now: float,
        prompt_tokens: int,
        uncached_tokens: int,
        *,
        streamed: bool = True,
    ) -> None:
        """A request goes to the backend.

        Args:
            streamed: its first token will be seen. The prefill of one that is not is taken to be
                done when that of a later request is, or, with no such request there, when it
                should be. Only where nothing is streamed it gives a sample: a weak one.
        """
        if not self._pending or self._due <= now:
            self._advance(now)
            if not self._pending:
                self._since = now
                self._due = self._soonest(now)
                self._began_amid = bool(self._streams)
        if streamed:
            self._seen += 1
            self._due = inf
        work = self._shape.prefill(prompt_tokens, uncached_tokens)
        self._pending[id] = _Prefill(
            now, prompt_tokens, uncached_tokens, work, self._dispatched_work, streamed
        )
        self._dispatched_work += work
        self._prompt_tokens += prompt_tokens

    def first_token(self, id: object, now: float) -> None:
        self._advance(now)
        done = self._pending.get(id)
        if done is None:
            return  # of what nobody was to tell, it was taken to be over already
        # Engines prefill in the order of arrival.
        before = []
        for other, each in self._pending.items():
            if other == id:
                break
            if not each.streamed:
                before.append(other)
        tokens, work = done.uncached_tokens, done.work
        for other in before:
            tokens += self._pending[other].uncached_tokens
            work += self._pending[other].work
        if self._observed > _SAMPLE_SECONDS and now - self._last_first >= _SAME_STEP:
            self._take_sample()
        steps = self._count_steps(tokens, now)
        step = self._step()
        self._count_prefill(steps)
        for request in (*before, id):
            self._begin_stream(request)
        if self._prompt_tokens < _FULL * self.capacity_tokens:
            self._observed += now - self._since
            self._expected += work + steps * step * self.decode / self.prefill
        if not self._pending and self._observed > _LEAST_SECONDS:
            self._take_sample()
        self._since = self._last_first = self._now = now
        self._due = inf if self._seen else self._soonest(now)
        self._began_amid = False

    def finished(self, id: object, now: float, output_tokens: int) -> None:
        """The last token has come, the whole answer for one that was not streamed."""
        self._advance(now)
        prefill = self._pending.get(id)
        if prefill is not None:
            if not prefill.streamed:
                self._learn_whole(prefill, now, output_tokens)
            self._strike(id, now)
            return
        stream = self._streams.get(id)
        if stream is None:
            return
        if not stream.prefill.streamed:
            self._learn_whole(stream.prefill, now, output_tokens)
        elif output_tokens > 1:
            self._learn_decode(stream, now, output_tokens - 1)
        self._strike(id, now)

    def dropped(self, id: object, now: float) -> None:
        """Cancelled or failed: how far it had come is not known."""
        self._advance(now)
        self._strike(id, now)

    def _strike(self, id: object, now: float) -> None:
        prefill = self._pending.pop(id, None)
        if prefill is not None:
            self._seen -= prefill.streamed
            # What was done since the last first token cannot be told: leave that time out.
            self._since = self._now = now
            self._due = inf if self._seen else self._soonest(now)
            self._began_amid = False
        else:
            stream = self._streams.pop(id, None)
            if stream is None:
                return
            prefill = stream.prefill
            self._stream_tokens -= prefill.prompt_tokens - stream.steps
        self._prompt_tokens -= prefill.prompt_tokens

    # what is made of it

    def settle(self, prefill: float, decode: float) -> None:
        """Lean on these medians from now on."""
        self._pool_prefill, self._pool_decode = prefill, decode
        self._update()

    def fade(self, keep: float) -> None:
        self._prefill.fade(keep)
        self._decode.fade(keep)

    @property
    def is_known(self) -> bool:
        """Whether enough work was seen to count for a median."""
        return self._prefill.seconds > PRIOR_SECONDS

    def _update(self) -> None:
        pool = self._pool_prefill
        self.prefill = _bounded(self._prefill.shrunk_to(pool, PRIOR_SECONDS), pool)
        like_prefill = self._pool_decode * self.prefill / pool
        self.decode = _bounded(
            self._decode.shrunk_to(like_prefill, PRIOR_SECONDS), self._pool_decode
        )

    def _take_sample(self) -> None:
        self._learn_prefill(self._observed, self._expected)
        self._observed = self._expected = 0.0

    def _learn_prefill(self, observed: float, expected: float) -> None:
        if self._prefill.add(observed, expected, self.prefill):
            # Decode has changed as well; until it is measured it goes by prefill.
            self._decode.fade(0.1)
        self._update()

    def _learn_decode(self, stream: _Stream, now: float, steps: int) -> None:
        beside = self._prefill_steps + self._steps_under_way(now) - stream.prefill_steps
        free_steps = self._free_steps - stream.free_steps
        if beside > 0.5 * steps or free_steps <= 0.0:
            return
        # Streams side by side tell the same story.
        free = (self._free_seconds - stream.free_seconds) / len(self._streams)
        self._decode.add(free, free * (steps - beside) / free_steps, self.decode)
        self._update()

    def _learn_whole(self, prefill: _Prefill, now: float, output_tokens: int) -> None:
        """A weak sample: all that was dispatched during the request, against all of its time.

        Only for a backend that streams nothing; otherwise first tokens say more.
        """
        observed = now - prefill.began
        if now - self._last_first < _NO_STREAMS_SECONDS or observed <= 0.0:
            return
        work = self._dispatched_work - prefill.work_before
        expected = work + output_tokens * self._step() * self.decode / self.prefill
        weight = _WEAK / (len(self._streams) + len(self._pending))
        self._whole_observed += weight * observed
        self._whole_expected += weight * expected
        if self._whole_observed > _SAMPLE_SECONDS:
            self._learn_prefill(self._whole_observed, self._whole_expected)
            self._whole_observed = self._whole_expected = 0.0

    # the engine as it should be going

    def _advance(self, now: float) -> None:
        """Count the time since the last event."""
        if self._pending and self._due <= now:
            self._assume_prefilled(now)
        if not self._pending:
            if self._streams:
                seconds = now - self._now
                self._free_seconds += seconds
                steps = seconds / self._step()
                self._free_steps += steps
                self._steps += steps / self.decode
            self._now = now

    def _assume_prefilled(self, now: float) -> None:
        """Nobody will tell when these prefills end: take them to be done when they should be."""
        while self._pending:
            id, prefill = next(iter(self._pending.items()))
            steps = max(1.0, prefill.uncached_tokens / self._budget())
            due = self._since + prefill.work * self.prefill + steps * self._step() * self.decode
            if due > now:
                self._due = due
                return
            self._count_prefill(steps)
            self._begin_stream(id)
            self._since = self._now = due

    def _soonest(self, now: float) -> float:
        """When a prefill that the engine turns to now can be done: it takes a step at least."""
        return now + self._shape.step_seconds * self.decode

    def _count_prefill(self, steps: float) -> None:
        self._prefill_steps += steps
        self._steps += steps

    def _step(self) -> float:
        streams = len(self._streams)
        if not streams:
            return self._shape.step_seconds
        grown = self._stream_tokens + streams * self._steps
        return self._shape.step(streams, max(grown, 0.0))

    def _budget(self) -> int:
        return max(1, self._shape.chunk_tokens - len(self._streams))

    def _count_steps(self, tokens: int, now: float) -> float:
        """Steps that prefilled `tokens` tokens, less those that are counted already."""
        budget = self._budget()
        if now - self._last_first < _SAME_STEP:
            self._group_tokens += tokens
            before, self._group_steps = self._group_steps, max(1.0, self._group_tokens / budget)
            return max(0.0, self._group_steps - before)
        self._group_tokens = tokens
        self._group_steps = max(1.0, tokens / budget)
        return self._group_steps + (0.5 if self._began_amid else 0.0)

    def _steps_under_way(self, now: float) -> float:
        """Steps, so far, of the prefill in progress."""
        for prefill in self._pending.values():
            steps = max(1.0, prefill.uncached_tokens / self._budget())
            seconds = prefill.work * self.prefill + steps * self._step() * self.decode
            return steps * min(1.0, (now - self._since) / seconds)
        return 0.0

    def _begin_stream(self, id: object) -> None:
        prefill = self._pending.pop(id)
        self._seen -= prefill.streamed
        self._streams[id] = _Stream(
            prefill, self._free_seconds, self._free_steps, self._prefill_steps, self._steps
        )
        self._stream_tokens += prefill.prompt_tokens - self._steps


def _bounded(factor: float, around: float) -> float:
    return min(max(factor, around / MAX_FACTOR), around * MAX_FACTOR)
