from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.sim.steps import StepRun, step_seconds
from tests.sim.support import TIMING


def test_a_run_is_the_sum_of_its_steps() -> None:
    run = StepRun.decoding(TIMING, 5.0, 3, 100)
    end = 5.0
    for number in range(50):
        assert run.end(number) == pytest.approx(end)
        end += step_seconds(TIMING, 3, 100 + 3 * number)


@given(
    time=st.floats(0, 100),
    done=st.integers(0, 200),
    streams=st.integers(1, 200),
    context=st.integers(0, 10**6),
)
def test_reaching_is_the_first_step_that_ends_no_earlier(
    time: float, done: int, streams: int, context: int
) -> None:
    run = StepRun.decoding(TIMING, 3.0, streams, context + streams)
    run.done = done
    steps = run.reaching(time)
    assert steps > done
    assert run.end(steps) >= time
    assert steps == done + 1 or run.end(steps - 1) < time
