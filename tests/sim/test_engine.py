from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from loadtests.sim.engine import Engine
from loadtests.sim.sequence import Request, Sequence, State
from loadtests.sim.steps import step_seconds
from loadtests.sim.timeline import Timer
from tests.sim.support import TIMING, Bench, Heard, profile, units


def decode(streams: int, context: int) -> float:
    return step_seconds(TIMING, streams, context)


def test_one_request_takes_what_the_formula_says() -> None:
    bench = Bench(profile())
    _, heard = bench.submit(100, 4)
    bench.run()
    first = 0.01 + 0.001 * 100 * (1 + 50 / 1000)
    expected = [first]
    for context in (100, 101, 102):
        expected.append(expected[-1] + 0.01 + 0.002 + 0.00001 * context)
    assert heard.tokens == pytest.approx(expected)
    assert heard.finish == heard.tokens[-1]


def test_the_prompt_alone_is_computed_when_no_output_is_wanted() -> None:
    bench = Bench(profile())
    sequence, heard = bench.submit(100, 0)
    bench.run()
    assert heard.tokens == []
    assert heard.finish == pytest.approx(0.01 + TIMING.prefill(0, 100))
    assert sequence.state is State.FINISHED
    assert bench.engine.cache.used == 0


def test_a_prefill_slows_those_that_decode() -> None:
    alone, beside = Bench(profile()), Bench(profile())
    gaps = []
    for bench in (alone, beside):
        _, heard = bench.submit(16, 10)
        if bench is beside:
            bench.timeline.call_at(0.06, lambda: beside.submit(200, 1))
        bench.run()
        gaps.append([b - a for a, b in zip(heard.tokens, heard.tokens[1:], strict=False)])
    slower = [b - a for a, b in zip(*gaps, strict=True)]
    assert max(slower) == pytest.approx(TIMING.prefill(0, 200))
    assert sum(slower) == pytest.approx(TIMING.prefill(0, 200))


def test_smaller_chunks_mean_shorter_stalls_and_a_later_first_token() -> None:
    stalls, firsts = [], []
    for budget in (16, 64, 256):
        bench = Bench(profile(max_num_batched_tokens=budget))
        _, decoding = bench.submit(8, 60)
        late: list[Heard] = []
        bench.timeline.call_at(0.1, lambda b=bench, to=late: to.append(b.submit(200, 2)[1]))
        bench.run()
        stalls.append(
            max(b - a for a, b in zip(decoding.tokens, decoding.tokens[1:], strict=False))
        )
        firsts.append(late[0].tokens[0])
    assert stalls[0] < stalls[1] < stalls[2]
    assert firsts[0] > firsts[1] > firsts[2]


def test_chunking_does_not_change_the_work_of_a_prefill() -> None:
    whole = TIMING.prefill(0, 200)
    assert sum(TIMING.prefill(at, 50) for at in range(0, 200, 50)) == pytest.approx(whole)


def test_a_step_never_exceeds_its_token_budget() -> None:
    bench = Bench(profile(max_num_batched_tokens=32))
    for _ in range(6):
        bench.submit(50, 5)
    bench.run()
    assert max(step.prefilled + step.decoding for step, _, _ in bench.steps) == 32
    assert sum(step.prefilled for step, _, _ in bench.steps) == 300


def test_no_more_sequences_run_than_allowed() -> None:
    bench = Bench(profile(max_num_seqs=3))
    for _ in range(7):
        bench.submit(16, 4)
    bench.run()
    assert max(running for _, running, _ in bench.steps) == 3
    assert bench.engine.counters.finished == 7


def test_without_chunking_a_prompt_is_computed_in_one_step() -> None:
    bench = Bench(profile(chunked_prefill=False, max_num_batched_tokens=100, max_model_len=100))
    for _ in range(3):
        bench.submit(60, 2)
    bench.run()
    assert {step.prefilled for step, _, _ in bench.steps} == {0, 60}


def test_the_long_prefill_threshold_lets_a_short_prompt_pass() -> None:
    firsts = {}
    for threshold in (0, 64):
        bench = Bench(profile(long_prefill_token_threshold=threshold))
        _, long = bench.submit(900, 1)
        _, short = bench.submit(20, 1)
        bench.run()
        firsts[threshold] = short.tokens[0], long.tokens[0]
    assert firsts[64][0] < firsts[0][0]
    assert firsts[64][1] > firsts[0][1]


def test_the_threshold_does_not_hold_back_a_lone_prompt() -> None:
    bench = Bench(profile(long_prefill_token_threshold=16))
    bench.submit(256, 1)
    bench.run()
    assert bench.engine.counters.steps == 1


def test_a_second_request_reuses_all_whole_blocks_but_the_last_token() -> None:
    bench = Bench(profile())
    cached = []
    for tokens in (64, 64, 70, 65):
        sequence, _ = bench.submit(tokens, 1, units(1, tokens // 16))
        bench.run()
        cached.append(sequence.cached_tokens)
    assert cached == [0, 48, 64, 64]


def test_requests_share_a_prefix_while_it_is_being_computed() -> None:
    bench = Bench(profile())
    bench.submit(64, 2, units(1, 4))
    second, _ = bench.submit(64, 2, units(1, 4))
    bench.run()
    assert second.cached_tokens == 48


def test_generated_tokens_are_reused_in_the_next_turn() -> None:
    bench = Bench(profile())
    bench.submit(32, 33, units(1, 4))
    bench.run()
    # 32 + 33 tokens, and the last one has not been through the model: 64 are in the cache.
    follow_up, _ = bench.submit(100, 1, units(1, 6))
    bench.run()
    assert follow_up.cached_tokens == 64


def test_decoding_occupies_blocks() -> None:
    bench = Bench(profile())
    bench.submit(16, 40)
    bench.run()
    used = [used for _, _, used in bench.steps]
    assert used[0] == 1
    assert used[-1] == 4  # 16 + 39 tokens
    assert used == sorted(used)


def test_a_request_waits_for_room_and_those_behind_it_wait_too() -> None:
    bench = Bench(profile(kv_tokens=10 * 16))
    _, first = bench.submit(100, 5)
    _, second = bench.submit(100, 5)
    _, third = bench.submit(16, 1)
    bench.run()
    assert first.finish is not None
    assert second.tokens[0] > first.finish
    assert third.tokens[0] > first.finish


def test_when_blocks_run_out_the_last_admitted_is_preempted_and_recomputed() -> None:
    bench = Bench(profile(kv_tokens=8 * 16))
    first, heard_first = bench.submit(60, 40, units(1, 6))
    second, heard_second = bench.submit(60, 40, units(2, 6))
    bench.run()
    assert first.preemptions == 0
    assert second.preemptions >= 1
    assert bench.engine.counters.preemptions == second.preemptions
    for heard in (heard_first, heard_second):
        assert len(heard.tokens) == 40
        assert heard.tokens == sorted(heard.tokens)
    assert heard_second.finish > heard_first.finish
    assert bench.engine.counters.prompt_tokens == 120, "a recomputation is not a new request"
    assert bench.engine.cache.used == 0


def test_an_aborted_request_frees_its_place() -> None:
    bench = Bench(profile(kv_tokens=10 * 16))
    running, heard = bench.submit(100, 50)
    waiting, never = bench.submit(100, 5)
    _, third = bench.submit(100, 5)
    bench.run(until=0.2)
    tokens = len(heard.tokens)
    assert bench.engine.abort(waiting)
    assert bench.engine.abort(running)
    assert not bench.engine.abort(running)
    bench.run()
    assert len(heard.tokens) == tokens
    assert heard.finish is None
    assert never.tokens == []
    assert third.finish is not None
    assert third.finish < 0.5
    assert bench.engine.cache.used == 0
    assert bench.engine.counters.aborted == 2


def test_a_request_that_cannot_ever_fit_is_refused() -> None:
    bench = Bench(profile())
    with pytest.raises(ValueError, match="larger than the KV cache"):
        bench.engine.submit(Request(64 * 16, 1), Heard())


def test_a_listener_may_submit_the_next_request() -> None:
    bench = Bench(profile())
    followed: list[Heard] = []

    class Following(Heard):
        def on_finish(self, now: float) -> None:
            super().on_finish(now)
            followed.append(bench.submit(16, 1)[1])

    listener = Following()
    bench.engine.submit(Request(16, 3), listener)
    bench.run()
    assert listener.finish is not None
    assert followed[0].tokens == [listener.finish + 0.01 + TIMING.prefill(0, 16)]


def test_a_blocked_request_starts_as_soon_as_enough_of_it_is_shared() -> None:
    bench = Bench(
        profile(kv_tokens=12 * 16, max_num_batched_tokens=64, long_prefill_token_threshold=16)
    )
    _, first = bench.submit(128, 30, units(1, 8))
    second, _ = bench.submit(128, 2, units(1, 8))
    bench.run()
    assert second.cached_tokens > 0
    assert second.admitted < first.finish


def test_when_the_first_in_line_leaves_the_next_one_is_tried() -> None:
    bench = Bench(profile(kv_tokens=10 * 16))
    _, running = bench.submit(100, 50)
    too_large, _ = bench.submit(100, 5)
    _, small = bench.submit(16, 1)
    bench.run(until=0.3)
    assert small.tokens == []
    bench.engine.abort(too_large)
    bench.run()
    assert small.finish < running.finish


def test_settling_counts_the_steps_that_are_over() -> None:
    skipping, stepping = Bench(profile(), step_by_step=False), Bench(profile())
    for bench in (skipping, stepping):
        bench.submit(16, 100)
    seen = set()
    for tick in range(1, 70):
        for bench in (skipping, stepping):
            bench.timeline.call_at(tick * 0.02, lambda: None)
            bench.run(until=tick * 0.02)
            bench.engine.settle()
        tokens = skipping.engine.counters.generated_tokens
        assert tokens == stepping.engine.counters.generated_tokens
        assert skipping.engine.cache.used == stepping.engine.cache.used
        seen.add(tokens)
    assert len(seen) > 50


class Aborting(Heard):
    """Gives up a request, its own or another, at its own first token."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.victim: Sequence | None = None

    def on_first_token(self, now: float) -> None:
        super().on_first_token(now)
        assert self.victim is not None
        assert self.bench.engine.abort(self.victim)


@pytest.mark.parametrize("output", [1, 5])
def test_a_listener_may_abort_its_own_request(output: int) -> None:
    bench = Bench(profile())
    listener = Aborting(bench)
    listener.victim = bench.engine.submit(Request(16, output), listener)
    bench.run()
    assert len(listener.tokens) == 1
    assert listener.finish is None
    assert listener.victim.state is State.ABORTED
    assert bench.engine.counters.aborted == 1
    assert bench.engine.cache.used == 0


def test_a_listener_may_abort_another_request() -> None:
    bench = Bench(profile())
    listener = Aborting(bench)
    bench.engine.submit(Request(16, 5), listener)
    # Its first token would be out at the same moment, after the abort.
    listener.victim, heard = bench.submit(16, 5)
    bench.run()
    assert len(listener.tokens) == 5
    assert heard.tokens == []
    assert bench.engine.cache.used == 0


class LateTimeline:
    """A timeline whose one timer fires when the test says so, however late that is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.when = 0.0
        self._callback: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.when, self._callback = when, callback
        return self

    def cancel(self) -> None:
        self._callback = None

    def fire(self, late: float) -> None:
        callback, self._callback = self._callback, None
        assert callback is not None
        self.now = self.when + late
        callback()


def test_late_timers_do_not_add_up_but_a_stopped_process_loses_its_time() -> None:
    timeline = LateTimeline()
    engine = Engine(profile(), timeline, step_by_step=True)
    heard = Heard()
    engine.submit(Request(16, 12), heard)
    timeline.fire(0.0)
    for late in [0.5] * 5 + [30.0] + [0.5] * 6:
        timeline.fire(late)
    on_time = Bench(profile())
    _, expected = on_time.submit(16, 12)
    on_time.run()
    assert heard.tokens[:6] == expected.tokens[:6]
    lost = [a - b for a, b in zip(heard.tokens[6:], expected.tokens[6:], strict=True)]
    assert lost == pytest.approx([30.0] * 6)


def test_what_runs_is_held_below_its_own_limit_and_the_rest_keeps_content() -> None:
    bench = Bench(profile(max_running_tokens=4 * 16))
    for name in range(8):
        bench.submit(32, 1, units(name, 2))
    bench.run()
    assert max(running for _, running, _ in bench.steps) == 2
    assert max(used for _, _, used in bench.steps) == 4
    again, _ = bench.submit(32, 1, units(0, 2))
    bench.run()
    assert again.cached_tokens == 16, "seven prompts have come since, and none had to go"
    with pytest.raises(ValueError, match="larger than the KV cache"):
        bench.submit(4 * 16, 1)


def test_decoding_beyond_that_limit_preempts() -> None:
    bench = Bench(profile(max_running_tokens=4 * 16))
    first, _ = bench.submit(17, 20)
    second, _ = bench.submit(17, 30)
    bench.run()
    assert first.preemptions == 0
    assert second.preemptions == 1
    assert second.state is State.FINISHED
    assert bench.engine.cache.used == 0


def test_an_engine_can_become_slower_between_two_steps() -> None:
    alone, slowed = Bench(profile()), Bench(profile())
    slower = TIMING.faster(0.5)
    slowed.timeline.call_at(0.2, lambda: slowed.engine.set_timing(slower))
    tokens = []
    for bench in (alone, slowed):
        _, heard = bench.submit(100, 10)
        bench.run()
        tokens.append(heard.tokens)
    usual, late = tokens
    changed = sum(token <= 0.2 for token in usual) + 1
    assert late[:changed] == usual[:changed]
    gaps = [[b - a for a, b in pairwise(times)][changed - 1 :] for times in tokens]
    assert gaps[1] == pytest.approx([2 * gap for gap in gaps[0]])


def test_an_idle_engine_can_become_slower() -> None:
    bench = Bench(profile())
    bench.engine.set_timing(TIMING.faster(0.5))
    bench.run()
    _, heard = bench.submit(100, 1)
    bench.run()
    assert heard.tokens == pytest.approx([2 * (0.01 + TIMING.prefill(0, 100))])
