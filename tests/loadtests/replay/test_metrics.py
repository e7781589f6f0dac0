from __future__ import annotations

import math

import pytest

from gateway.types import WorkClass
from loadtests.replay.metrics import Slo, curve, measured, metrics, warm_up
from loadtests.replay.result import Result


def result(
    arrival: float = 0.0,
    ttft: float | None = 1.0,
    tpot: float = 0.05,
    cold: float = 0.5,
    tokens: int = 1000,
    cached: int = 0,
    predicted: float = 0.0,
    engine: int = 0,
    work: float = 1.0,
    queue: float = 0.0,
    work_class: WorkClass = WorkClass.DECODE,
    output: int = 11,
) -> Result:
    made = Result(arrival, tokens, output, cold)
    made.work_class = work_class
    if ttft is None:
        made.refusal = "queue_full"
        return made
    made.first = arrival + ttft
    made.last = made.first + tpot * (output - 1)
    made.cached_tokens, made.predicted_tokens = cached, predicted
    made.engine, made.prefill_seconds, made.queue_seconds = engine, work, queue
    return made


def test_the_slo_takes_both_times() -> None:
    slo = Slo(ttft=2.0, ttft_factor=3.0, tpot=0.1)
    assert slo.met(result(ttft=2.0, tpot=0.1 - 1e-9))
    assert not slo.met(result(ttft=2.1))
    assert not slo.met(result(tpot=0.11))
    assert slo.met(result(ttft=2.9, cold=1.0)), "a long prompt may take three times its prefill"
    assert not slo.met(result(ttft=3.1, cold=1.0))
    assert slo.met(result(output=1, tpot=9.0)), "one token has no time between tokens"
    assert not slo.met(result(ttft=None))


def test_slowdown_is_against_the_prefill_alone_or_a_floor() -> None:
    slo = Slo()
    assert slo.slowdown(result(ttft=1.0, cold=0.5)) == pytest.approx(2)
    assert slo.slowdown(result(ttft=1.0, cold=0.001)) == pytest.approx(5)
    assert slo.slowdown(result(ttft=None)) is None


def test_the_warm_up_is_not_measured() -> None:
    assert warm_up(1000) == 100
    assert warm_up(100_000) == 300
    results = [result(arrival=at) for at in (99.0, 100.0, 500.0)]
    assert measured(results, 1000) == results[1:]


def test_figures_of_a_run() -> None:
    results = [
        result(ttft=1.0, tpot=0.02, cached=500, predicted=600, engine=0, work=1.0),
        result(ttft=3.0, tpot=0.04, tokens=3000, cached=1500, predicted=1400, engine=1, work=3.0),
        result(ttft=None),
        result(ttft=0.5, tokens=1000, output=1, engine=0, work=1.0, queue=0.25),
    ]
    found = metrics(results, 2, Slo())
    assert (found["requests"], found["refused"]) == (4, 1)
    assert found["slo"] == pytest.approx(2 / 4)
    assert found["hit"] == pytest.approx(2000 / 5000)
    assert found["ttft_mean"] == pytest.approx(1.5)
    assert found["ttft_p50"] == pytest.approx(1.0)
    assert found["tpot_mean"] == pytest.approx(0.03)
    assert found["slowdown_p99"] == pytest.approx(6.0, rel=0.05)
    assert found["imbalance"] == pytest.approx(3 / 2.5)
    assert found["work_cv"] == pytest.approx(0.5 / 2.5)
    assert found["predicted_bias"] == pytest.approx(0.0)
    assert found["predicted_mae"] == pytest.approx(200 / 3)
    assert found["queue_p99_decode"] == pytest.approx(0.25, rel=0.05)
    assert math.isnan(found["queue_p99_prefill"])


def test_figures_of_a_run_in_which_nothing_was_served() -> None:
    found = metrics([result(ttft=None)], 2, Slo())
    assert (found["slo"], found["refused"]) == (0, 1)
    assert math.isnan(found["ttft_p99"])
    assert math.isnan(found["hit"])
    assert math.isnan(found["imbalance"])


def test_the_curve_goes_minute_by_minute() -> None:
    results = [result(arrival=at, ttft=at / 10) for at in (1.0, 59.0, 125.0)]
    results.append(result(arrival=70.0, ttft=None))
    first, second, third = curve(results)
    assert (first["from"], first["served"]) == (0, 2)
    assert first["ttft_p99"] == pytest.approx(5.9, rel=0.02)
    assert (second["from"], second["served"]) == (60, 0)
    assert math.isnan(second["ttft_p99"])
    assert third["from"] == 120
