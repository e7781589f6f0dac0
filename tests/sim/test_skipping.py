"""Skipping ahead and going step by step are the same engine: same times, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.sim.profile import Profile
from loadtests.sim.sequence import State
from tests.sim.support import Bench, Heard, profile, units


@dataclass
class Arrival:
    time: float
    tokens: int
    output: int
    name: int
    leaves: float | None


ARRIVALS = st.builds(
    Arrival,
    time=st.floats(0, 3),
    tokens=st.integers(1, 120),
    output=st.integers(0, 120),
    name=st.integers(1, 4),
    leaves=st.none() | st.floats(0, 2),
)
PROFILES = st.builds(
    profile,
    kv_tokens=st.integers(16, 40).map(lambda blocks: blocks * 16),
    max_num_batched_tokens=st.integers(4, 300),
    max_num_seqs=st.integers(1, 4),
    long_prefill_token_threshold=st.sampled_from([0, 20]),
    prefix_caching=st.booleans(),
)


def replay(settings: Profile, arrivals: list[Arrival], *, step_by_step: bool) -> list[object]:
    bench = Bench(settings, step_by_step=step_by_step)
    outcomes: list[tuple[object, Heard]] = []
    sequences = {}

    def arrive(number: int) -> None:
        request = arrivals[number]
        prefix = units(request.name, (request.tokens + request.output) // 16)
        sequences[number], heard = bench.submit(request.tokens, request.output, prefix)
        outcomes.append((sequences[number], heard))

    for number, request in enumerate(arrivals):
        bench.timeline.call_at(request.time, lambda n=number: arrive(n))
        if request.leaves is not None:
            bench.timeline.call_at(
                request.time + request.leaves,
                lambda n=number: bench.engine.abort(sequences[n]),
            )
    bench.run()

    engine = bench.engine
    assert engine.waiting == engine.running == 0
    assert engine.cache.used == 0
    assert engine.counters.finished + engine.counters.aborted == len(arrivals)
    result: list[object] = [engine.counters]
    for sequence, heard in outcomes:
        assert (heard.finish is not None) == (sequence.state is State.FINISHED)
        if step_by_step and heard.finish is not None:
            assert len(heard.tokens) == sequence.request.output_tokens
        result.append(
            (
                heard.tokens[:1],
                heard.finish,
                sequence.cached_tokens,
                sequence.preemptions,
                sequence.admitted,
                sequence.state,
            )
        )
    return result


@settings(max_examples=300, deadline=None)
@given(PROFILES, st.lists(ARRIVALS, min_size=1, max_size=12))
def test_both_ways_give_the_same_times(engine: Profile, arrivals: list[Arrival]) -> None:
    assert replay(engine, arrivals, step_by_step=True) == replay(
        engine, arrivals, step_by_step=False
    )


def test_the_histories_above_do_preempt_and_skip() -> None:
    crowd = [Arrival(0.01 * n, 60, 100, n, None) for n in range(4)]
    small = profile(kv_tokens=20 * 16, max_num_seqs=4)
    by_step, skipping = (replay(small, crowd, step_by_step=way) for way in (True, False))
    assert by_step == skipping
    assert skipping[0].preemptions > 0

    bench = Bench(profile(), step_by_step=False)
    bench.submit(16, 200)
    bench.run()
    assert [step.steps for step, _, _ in bench.steps] == [1, 199]
