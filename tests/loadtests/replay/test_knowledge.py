"""What a gateway learns in a replay, and what it does not when it is told not to."""

from __future__ import annotations

import pytest

from loadtests.replay.knowledge import Booking, Classes, Knowledge, Output
from loadtests.replay.trace import Trace
from tests.loadtests.replay.made import BLOCK, request, trace
from tests.loadtests.replay.test_gateway import Bench

QUESTIONS = trace(*(request(5.0 * n, [1, 2], output_tokens=7) for n in range(10)))


def expected(knowledge: Knowledge) -> list[int]:
    return [seen.output_tokens for seen in Bench(QUESTIONS, knowledge=knowledge).policy.seen]


def test_lengths_of_answers_are_learnt() -> None:
    assert expected(Knowledge()) == [300] * 5 + [7] * 5
    assert expected(Knowledge(output=Output.TYPICAL)) == [300] * 10
    assert expected(Knowledge(output=Output.TOLD)) == [7] * 10


@pytest.mark.parametrize("learns", [True, False])
def test_speeds_are_learnt_and_written_into_the_ledgers(learns: bool) -> None:
    # The engine takes ten times as long for a prompt token as is taken for granted.
    made = trace(*(request(10.0 * n, tokens=4000) for n in range(10)))
    bench = Bench(made, knowledge=Knowledge(rates=learns))
    [load] = bench.gateway.pool.backends
    assert (load.prefill_rate < 5000) is learns


@pytest.mark.parametrize("learns", [True, False])
def test_a_cache_that_is_larger_than_stated_is_found_out(learns: bool) -> None:
    # Twenty prompts of two blocks in turn: half of the cache's 64 blocks is too little for them.
    turns = [request(5.0 * n, [2 * (n % 20) + 1000, 2 * (n % 20) + 1001]) for n in range(300)]
    knowledge = Knowledge(index_capacity=0.5, capacity=learns)
    gateway = Bench(trace(*turns), knowledge=knowledge).gateway
    held = gateway.index.stats().backends["engine-0"].capacity_tokens
    assert (held > 40 * BLOCK) is learns


def test_without_an_index_nothing_is_expected() -> None:
    bench = Bench(QUESTIONS, knowledge=Knowledge(index=False))
    assert [result.predicted_tokens for result in bench.results] == [0] * 10
    assert bench.gateway.index.stats().blocks == 0


def test_a_prompt_can_count_as_cached_from_its_first_token_on() -> None:
    made = trace(request(0, [1, 2]), request(0.1, [1, 2]), request(9, [1, 2]))
    for booking, second in ((Booking.DISPATCH, 2 * BLOCK), (Booking.FIRST_TOKEN, 0)):
        results = Bench(made, knowledge=Knowledge(booking=booking)).results
        assert [r.predicted_tokens for r in results] == [0, second, 2 * BLOCK]


def test_a_class_can_go_by_length() -> None:
    made = trace(request(0, range(16)), request(30, range(16)))
    for classes, later in ((Classes.WORK, "decode"), (Classes.LENGTH, "prefill")):
        results = Bench(made, knowledge=Knowledge(classes=classes)).results
        assert [str(r.work_class) for r in results] == ["prefill", later]


def test_blocks_of_the_index_can_be_coarser() -> None:
    made: Trace = trace(request(0, [1, 2, 3, 4, 5]), request(30, [1, 2, 3, 4, 5]))
    for block, known in ((1, 5), (2, 4), (4, 4)):
        later = Bench(made, knowledge=Knowledge(block=block)).results[1]
        assert later.predicted_tokens == known * BLOCK
        assert later.cached_tokens == 5 * BLOCK
