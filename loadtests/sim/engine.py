"""The engine: one loop of steps over a KV cache, with continuous batching and chunked prefill.

Nothing here knows whether time is real. Sequences that decode advance together, one token a step,
so the engine counts steps and never tokens; while nothing comes, ends or runs out of blocks, it
skips to the step at which something does. Step by step it reaches the same times to the last bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from loadtests.sim.batch import DecodeBatch
from loadtests.sim.cache import BlockCache
from loadtests.sim.keeping import Keeping
from loadtests.sim.profile import Profile, Timing
from loadtests.sim.report import Counters, Step
from loadtests.sim.sequence import Fetch, Listener, Request, Sequence, State
from loadtests.sim.steps import StepRun, step_seconds
from loadtests.sim.timeline import Timeline, Timer

MAX_LAG = 1.0
"""Seconds. A process that was stopped for longer goes on from where it was: a stopped engine does
not make up for lost time. Less is the lateness of timers, and must not add up."""


class Engine:
    """
    Args:
        unit_tokens: tokens per entry of `Request.prefix`, a multiple of the block size; a block
            by default.
        step_by_step: report every token instead of skipping ahead.
        on_step: told at the end of each step, before the listeners are.

    Raises:
        ValueError: the unit is not a multiple of the block size.
    """

    def __init__(
        self,
        profile: Profile,
        timeline: Timeline,
        *,
        unit_tokens: int | None = None,
        step_by_step: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self.profile = profile
        self.counters = Counters()
        self._unit = profile.block_size if unit_tokens is None else unit_tokens
        self._unit_blocks, rest = divmod(self._unit, profile.block_size)
        if rest or not self._unit_blocks:
            raise ValueError(f"unit_tokens must be a multiple of {profile.block_size}")
        self.cache = BlockCache(
            profile.num_blocks,
            self._unit_blocks,
            usable=profile.usable_blocks,
            reuse=profile.prefix_caching,
        )
        self._timeline = timeline
        self._step_by_step = step_by_step
        self._on_step = on_step

        self._waiting: deque[Sequence] = deque()
        self._blocked = False
        """The first in line has been tried, and cannot be admitted until something is released."""
        self._receiving: dict[Sequence, None] = {}
        self._to_fetch: list[Sequence] = []
        """Reserved in this step, and not told yet."""
        self._keeping = Keeping(self.cache, timeline, self._lease_over)
        self._running: dict[Sequence, None] = {}
        self._prefilling: dict[Sequence, None] = {}
        self._decoding = DecodeBatch(profile.block_size)
        self._changed = True
        """The decoding sequences are not those of the last step."""
        self._stopping: list[Sequence] = []
        self._grown = 0
        """Steps for which decoding sequences have their blocks."""

        self._run = StepRun(timeline.time(), 0.0)
        self._chunks: list[tuple[Sequence, int]] = []
        """Prompt tokens of the step in progress."""
        self._span = 0
        """Steps until the engine looks up again."""
        self._began = self._end = timeline.time()
        self._timer: Timer | None = None
        self._in_boundary = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def receiving(self) -> int:
        return len(self._receiving)

    @property
    def kept(self) -> int:
        """Finished prefills whose blocks wait for another engine."""
        return len(self._keeping)

    def submit(
        self,
        request: Request,
        listener: Listener,
        *,
        fetch: Fetch | None = None,
        keeps: bool = False,
    ) -> Sequence:
        """Queue a request; it starts with the next step that has room for it.

        Args:
            fetch: called when the blocks of a prompt that another engine computes are reserved; it
                waits for `received` then.
            keeps: when it ends, its blocks stay until `fetched`, or until the lease of the profile
                is over.

        Raises:
            ValueError: it is empty, or larger than what may run of the KV cache.
        """
        if request.input_tokens < 1 or request.output_tokens < 0:
            raise ValueError("a request has at least one prompt token and no negative output")
        if self._blocks(request.input_tokens + request.output_tokens) > self.cache.usable:
            raise ValueError("the request is larger than the KV cache")
        sequence = Sequence(request, listener, self._timeline.time(), fetch, keeps)
        self._waiting.append(sequence)
        if not self._blocked and len(self._running) < self.profile.max_num_seqs:
            self._wake()
        return sequence

    def received(self, sequence: Sequence, tokens: int) -> None:
        """What another engine computed has come. Nothing happens when it was aborted.

        Args:
            tokens: of the prompt, from its begin; the rest, at least its last token, is computed
                here.
        """
        if sequence.state is not State.RECEIVING:
            return
        del self._receiving[sequence]
        self._running[sequence] = None
        self._prefilling[sequence] = None
        sequence.state = State.PREFILL
        come = min(tokens, sequence.target - 1) - sequence.computed
        if come > 0:
            sequence.computed += come
            self.counters.received_tokens += come
            self._name(sequence, sequence.computed)
        self._wake()

    def fetched(self, sequence: Sequence) -> bool:
        """Give back what was kept of a finished prefill.

        Returns:
            False when its lease was over.
        """
        if not self._keeping.give_back(sequence):
            return False
        self._blocked = False
        self._wake()
        return True

    def keeps(self, sequence: Sequence) -> bool:
        """Whether the blocks of a finished prefill are still there to be fetched."""
        return sequence in self._keeping

    def _lease_over(self) -> None:
        self.counters.expired += 1
        self._blocked = False
        self._wake()

    def abort(self, sequence: Sequence) -> bool:
        """Drop a request: at once when it waits, at the end of the step when it runs.

        Returns:
            False when it was over already.
        """
        if sequence.state is State.WAITING:
            if sequence is self._waiting[0]:
                self._blocked = False
            self._waiting.remove(sequence)
            sequence.state = State.ABORTED
            self.counters.aborted += 1
        elif sequence.state is State.RECEIVING:
            del self._receiving[sequence]
            self._give_back(sequence, State.ABORTED, sequence.target)
            self.counters.aborted += 1
        elif sequence in self._running and not sequence.stopping:
            sequence.stopping = True
            self._stopping.append(sequence)
        else:
            return False
        self._wake()
        return True

    def set_timing(self, timing: Timing) -> None:
        """Become faster or slower, from the next step on."""
        self.profile = msgspec.structs.replace(self.profile, timing=timing)
        self._changed = True
        self._wake()

    def generated(self, sequence: Sequence) -> int:
        """Tokens that a running sequence has generated by now."""
        if sequence.state is not State.DECODE:
            return sequence.generated
        self.settle()
        return sequence.generated + self.counters.steps - sequence.since

    def settle(self) -> None:
        """Count the steps that are over by now; for readers of counters and cache use."""
        if self._span > 1:
            over = self._run.reaching(self._timeline.time()) - 1 - self._run.done
            over = min(over, self._span - 1)
            if over > 0:
                self._commit(over, 0)
                self._span -= over
                self._grow(self.counters.steps + 1)

    def _wake(self) -> None:
        """Something came or went: look up at the end of the step in progress."""
        if self._in_boundary:
            return
        if self._timer is None:
            self._end = max(self._end, self._timeline.time())
            self._timer = self._timeline.call_at(self._end, self._boundary)
        elif self._span > 1:
            span = self._run.reaching(self._timeline.time()) - self._run.done
            if span < self._span:
                self._timer.cancel()
                self._plan(span)

    def _plan(self, span: int) -> None:
        self._span = span
        self._end = self._run.end(self._run.done + span)
        self._timer = self._timeline.call_at(self._end, self._boundary)

    def _boundary(self) -> None:
        """The end of a step, or an idle engine's wake-up: hand out what is made, and go on."""
        self._in_boundary = True
        self._timer = None
        now = self._end
        if self._span:
            self._hand_out(now)
        self._drop_stopping()
        self._in_boundary = False
        time = self._timeline.time()
        if time - now > MAX_LAG:
            now = self._end = time
            self._changed = True
        self._schedule(now)

    def _hand_out(self, now: float) -> None:
        chunks, self._chunks = self._chunks, []
        further = list(self._decoding.sequences) if self._step_by_step else ()
        self._commit(self._span, sum(tokens for _, tokens in chunks))
        self._span = 0
        self._drop_stopping()
        for sequence in further:
            if not sequence.stopping:
                sequence.listener.on_token(now)
        for sequence, tokens in chunks:
            if not sequence.stopping:
                sequence.computed += tokens
                if sequence.computed == sequence.target:
                    self._prefilled(sequence, now)
        for sequence in self._decoding.pop_ended(self.counters.steps):
            self._finish(sequence, now)

    def _commit(self, steps: int, prefilled: int) -> None:
        """`steps` of the planned steps are over."""
        counters, run, decoding = self.counters, self._run, len(self._decoding)
        self._grow(counters.steps + steps)
        self._decoding.advance(steps)
        counters.steps += steps
        counters.generated_tokens += steps * decoding
        counters.prefilled_tokens += prefilled
        run.done += steps
        began, self._began = self._began, run.end(run.done)
        if self._on_step is not None:
            self._on_step(Step(steps, self._began - began, decoding, prefilled, self._began))

    def _prefilled(self, sequence: Sequence, now: float) -> None:
        """All of it is computed: a token is out, and the sequence begins to decode."""
        left = sequence.request.output_tokens - sequence.generated
        if left:
            left -= 1
            sequence.generated += 1
            self.counters.generated_tokens += 1
            if sequence.first_token is None:
                sequence.first_token = now
                sequence.listener.on_first_token(now)
            elif self._step_by_step:
                sequence.listener.on_token(now)
        if left:
            del self._prefilling[sequence]
            sequence.state = State.DECODE
            self._decoding.add(sequence, self.counters.steps, left)
            self._changed = True
        else:
            self._finish(sequence, now)

    def _finish(self, sequence: Sequence, now: float) -> None:
        if sequence.stopping:
            self._leave(sequence, State.ABORTED)
            self.counters.aborted += 1
            return
        self._leave(sequence, State.FINISHED)
        self.counters.finished += 1
        sequence.listener.on_finish(now)

    def _drop_stopping(self) -> None:
        for sequence in self._stopping:
            if sequence in self._running:
                self._leave(sequence, State.ABORTED)
                self.counters.aborted += 1
        self._stopping.clear()

    def _leave(self, sequence: Sequence, state: State) -> None:
        """Take a running sequence out and give its blocks back."""
        held = sequence.target
        if sequence.state is State.DECODE:
            held = self._decoding.remove(sequence, self.counters.steps)
            self._name(sequence, held)
            self._changed = True
        else:
            del self._prefilling[sequence]
        del self._running[sequence]
        self._give_back(sequence, state, held)

    def _give_back(self, sequence: Sequence, state: State, held: int) -> None:
        """
        Args:
            held: tokens that it has blocks for.
        """
        sequence.state = state
        unnamed = self._blocks(held) - len(sequence.names) * self._unit_blocks
        if sequence.keeps and state is State.FINISHED:
            self._keeping.keep(sequence, unnamed, self.profile.kv_lease)
        else:
            self.cache.release(sequence.names, unnamed)
            self._blocked = False

    def _schedule(self, now: float) -> None:
        """Fill the next step, decoding sequences first, and plan up to where things change."""
        preempted = self._make_room()
        decoding = len(self._decoding)
        budget = self.profile.max_num_batched_tokens - decoding
        for sequence in self._prefilling:
            budget -= self._chunk(sequence, budget)
        if not preempted:
            while budget > 0 and (admitted := self._admit(budget, now)) is not None:
                if admitted.state is State.PREFILL:
                    budget -= self._chunk(admitted, budget)
        timing = self.profile.timing
        self._began = now
        if self._chunks:
            seconds = step_seconds(timing, decoding, self._decoding.context)
            seconds += sum(timing.prefill(seq.computed, tokens) for seq, tokens in self._chunks)
            self._run = StepRun(now, seconds)
            self._changed = True
            self._plan(1)
        elif decoding:
            if self._changed:
                self._run = StepRun.decoding(timing, now, decoding, self._decoding.context)
                self._changed = False
            self._plan(self._steps_ahead(preempted))
        reserved, self._to_fetch = self._to_fetch, []
        for sequence in reserved:
            assert sequence.fetch is not None
            sequence.fetch(sequence)

    def _make_room(self) -> bool:
        """Give each decoding sequence its block for the next step, preempting the last admitted
        while there are too few.

        Returns:
            Whether something was preempted.
        """
        preempted = False
        step = self.counters.steps
        while self._decoding.growth(step, step + 1) > self.cache.free:
            preempted = True
            victim = next(reversed(self._running))
            self._leave(victim, State.WAITING)
            victim.preemptions += 1
            self.counters.preemptions += 1
            self._waiting.appendleft(victim)
        self._grow(step + 1)
        return preempted

    def _grow(self, steps: int) -> None:
        """Take the blocks that decoding needs for the engine's first `steps` steps."""
        self.cache.allocate(self._decoding.growth(self._grown, steps))
        self._grown = steps

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """Put what fits of a prompt into the next step.

        Returns:
            Tokens.
        """
        tokens = min(sequence.target - sequence.computed, budget)
        limit = self.profile.long_prefill_token_threshold
        if limit and self.profile.chunked_prefill and len(self._running) + len(self._waiting) > 1:
            tokens = min(tokens, limit)
        if tokens > 0:
            self._chunks.append((sequence, tokens))
            self._name(sequence, sequence.computed + tokens)
        return tokens

    def _admit(self, budget: int, now: float) -> Sequence | None:
        """The first in line, if it may start now."""
        if not self._waiting or self.running + self.receiving >= self.profile.max_num_seqs:
            return None
        if self._blocked and not self._chunks:
            return None  # chunks name blocks that it may share, and so need less room
        sequence = self._waiting[0]
        request = sequence.request
        target = request.input_tokens + sequence.generated
        # The last token is always computed: its logits give the next one.
        reusable = min(len(request.prefix), (target - 1) // self._unit)
        units = self.cache.match(request.prefix, reusable)
        computed = units * self._unit
        whole = self.profile.chunked_prefill or target - computed <= budget
        new_blocks = self._blocks(target) - units * self._unit_blocks
        self._blocked = not whole or not self.cache.admit(request.prefix, units, new_blocks)
        if self._blocked:
            return None
        self._waiting.popleft()
        if sequence.fetch is not None and sequence.admitted is None:
            self._receiving[sequence] = None
            self._to_fetch.append(sequence)
            sequence.state = State.RECEIVING
        else:
            self._running[sequence] = None
            self._prefilling[sequence] = None
            sequence.state = State.PREFILL
        sequence.target = target
        sequence.computed = computed
        sequence.names = list(request.prefix[:units])
        sequence.considered = units
        if sequence.admitted is None:
            # It may have come after the step's nominal end, before a late timer fired.
            sequence.admitted = max(now, sequence.arrival)
            sequence.cached_tokens = computed
            self.counters.prompt_tokens += target
            self.counters.cached_tokens += computed
        return sequence

    def _name(self, sequence: Sequence, tokens: int) -> None:
        """Let others find the whole units among the first `tokens` tokens."""
        prefix = sequence.request.prefix
        units = min(len(prefix), tokens // self._unit)
        for key in prefix[sequence.considered : units]:
            if self.cache.name(key):
                sequence.names.append(key)
        sequence.considered = max(sequence.considered, units)

    def _steps_ahead(self, preempted: bool) -> int:
        """Steps that pass before anything can change by itself."""
        if self._step_by_step or preempted:
            return 1
        steps = self.counters.steps
        room = 1 + self._decoding.steps_within(steps + 1, self.cache.free)
        return min(self._decoding.next_end() - steps, room)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)
