"""The gateway's modules around engines whose times can be worked out by hand."""

from __future__ import annotations

import pytest

from gateway.config import ClassLimits, PrefillLimits, Scheduling
from gateway.types import Priority, WorkClass
from loadtests.replay.arm import PLAIN
from loadtests.replay.fleet import Fleet
from loadtests.replay.gateway import VirtualGateway
from loadtests.replay.knowledge import LIVE, Knowledge
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace
from loadtests.sim.timeline import VirtualTimeline
from policies.base import Params
from tests.loadtests.replay.made import BLOCK, PREFILL, STEP, Scripted, fleet, request, trace


class Bench:
    """A gateway to which requests of a trace are sent at their arrival."""

    def __init__(
        self,
        made: Trace,
        engines: Fleet | None = None,
        scheduling: Scheduling = PLAIN,
        knowledge: Knowledge = LIVE,
    ) -> None:
        engines = engines or fleet()
        self.timeline = VirtualTimeline()
        self.policy = Scripted(Params())
        self.gateway = VirtualGateway(
            engines.engines(self.timeline, made.unit_tokens),
            self.policy,
            scheduling,
            made,
            self.timeline,
            knowledge,
        )
        self.results = [
            Result(r.arrival, r.input_tokens, r.output_tokens, 1) for r in made.requests
        ]
        self.ended: list[int] = []
        for place, one in enumerate(made.requests):
            self.timeline.call_at(one.arrival, lambda place=place: self._send(made, place))
        self.timeline.run()

    def _send(self, made: Trace, place: int) -> None:
        self.gateway.submit(
            made.requests[place], self.results[place], lambda: self.ended.append(place)
        )


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    bench = Bench(trace(request(5, [1, 2], tokens=1100, output_tokens=11)))
    [result] = bench.results
    assert result.first == pytest.approx(5 + STEP + 1100 * PREFILL)
    assert result.last == pytest.approx(result.first + 10 * STEP)
    assert result.ttft == pytest.approx(STEP + 1.1)
    assert result.tpot == pytest.approx(STEP)
    assert (result.engine, result.cached_tokens, result.predicted_tokens) == (0, 0, 0)
    assert result.queue_seconds == 0
    assert bench.ended == [0]


def test_what_was_served_is_expected_and_found() -> None:
    bench = Bench(trace(request(0, [1, 2]), request(10, [1, 2, 3])))
    later = bench.results[1]
    assert later.predicted_tokens == 2 * BLOCK
    assert later.cached_tokens == 2 * BLOCK
    assert later.prefill_seconds == pytest.approx((BLOCK + 100) * PREFILL)
    assert later.ttft == pytest.approx(STEP + (BLOCK + 100) * PREFILL)
    assert bench.policy.seen[1].match.blocks == {"engine-0": 2}


def test_the_policy_decides_which_engine_serves() -> None:
    bench = Bench(trace(*(request(n, [1]) for n in range(4))), fleet(2))
    assert [result.engine for result in bench.results] == [0, 1, 0, 1]
    assert [result.cached_tokens for result in bench.results] == [0, 0, BLOCK, BLOCK]


def test_the_gateway_sees_prefills_end_and_answers_end() -> None:
    long_answer = request(0, tokens=100, output_tokens=501)
    made = trace(long_answer, *(request(at, tokens=100, output_tokens=1) for at in (0.05, 1, 9)))
    assert Bench(made).policy.decoding == [[0], [0], [1], [0]]


def test_the_gateway_is_told_no_more_than_a_client_tells() -> None:
    made = trace(
        request(0, [1], output_tokens=999),
        request(1, [1], output_tokens=999, max_tokens=64, tenant="t", priority=Priority.LOW),
    )
    first, second = Bench(made).policy.seen
    assert (first.output_tokens, second.output_tokens) == (300, 64)
    assert (second.tenant, second.priority, second.now) == ("t", Priority.LOW, 1)
    assert second.prompt_tokens == BLOCK + 100
    assert second.deadline >= 3


def test_ledgers_are_empty_at_the_end() -> None:
    bench = Bench(trace(*(request(0.01 * n, [1, n + 2]) for n in range(50))), fleet(3))
    assert sorted(bench.ended) == list(range(50))
    for load in bench.gateway.pool.backends:
        assert (load.in_flight, load.decoding, load.context_tokens) == (0, 0, 0)
    assert bench.gateway.pool.is_empty()
    assert bench.gateway.index.stats().bookings == 0


def test_the_schedulings_limits_hold_and_what_waits_is_granted_later() -> None:
    one_by_one = Scheduling(
        gate=None,
        prefill=PrefillLimits(max_requests=1),
        decode=ClassLimits(max_requests=1),
    )
    bench = Bench(trace(*(request(0, tokens=5000) for _ in range(2))), scheduling=one_by_one)
    first, second = bench.results
    assert first.work_class is WorkClass.PREFILL
    assert first.last is not None
    assert second.queue_seconds == pytest.approx(first.last)
    assert second.first is not None
    assert second.first > first.last


def test_who_waits_too_long_is_refused() -> None:
    impatient = Scheduling(
        gate=None,
        prefill=PrefillLimits(max_requests=1, max_wait=1.0),
        decode=ClassLimits(max_requests=1, max_wait=1.0),
    )
    bench = Bench(trace(*(request(0, tokens=8000) for _ in range(2))), scheduling=impatient)
    served, refused = bench.results
    assert served.refusal is None
    assert refused.refusal is not None
    assert (refused.first, refused.engine) == (None, -1)
    assert sorted(bench.ended) == [0, 1]


def test_an_answer_of_no_tokens_ends_with_its_prefill() -> None:
    [result] = Bench(trace(request(0, tokens=100, output_tokens=0))).results
    assert result.first == result.last == pytest.approx(STEP + 0.1)
    assert result.tpot is None


def test_growing_blocks_are_found_again_in_the_engine() -> None:
    chain = tuple(range(1, 21))  # 16 blocks of 32 tokens and 4 of 64: 768 tokens
    made = Trace(
        "log", (request(0, chain, tokens=800), request(5, chain, tokens=800)), "digest", None
    )
    later = Bench(made).results[1]
    assert later.predicted_tokens == later.cached_tokens == 768
