import dataclasses
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.sample import Sample
from loadtests.summary import ALL, by_kind, percentile, summarise, table
from loadtests.workload import Kind

SAMPLE = Sample(
    session="chat-0",
    turn=0,
    kind=Kind.CHAT,
    sent=0.0,
    seconds=1.0,
    ttft=0.25,
    tpot=0.01,
    prompt_tokens=100,
    cached_tokens=40,
    output_tokens=20,
    backend="",
    decision="",
    error=None,
)
FAILED = dataclasses.replace(SAMPLE, ttft=9.0, cached_tokens=100, error="HTTP 503")


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=200), st.integers(1, 99))
def test_percentiles_are_those_of_the_standard_library(values: list[float], percent: int) -> None:
    reference = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(sorted(values), percent / 100) == pytest.approx(reference)


def test_percentiles_at_the_ends() -> None:
    assert percentile([1.0, 2.0, 5.0], 0) == 1
    assert percentile([1.0, 2.0, 5.0], 1) == 5
    assert percentile([3.0], 0.99) == 3
    assert math.isnan(percentile([], 0.5))


def test_hit_ratio_weighs_requests_by_their_tokens() -> None:
    long = dataclasses.replace(SAMPLE, prompt_tokens=900, cached_tokens=0)
    assert summarise([SAMPLE, long], 1.0).hit_ratio == pytest.approx(40 / 1000)


def test_failed_requests_are_counted_and_otherwise_left_out() -> None:
    summary = summarise([SAMPLE, FAILED], 2.0)
    assert (summary.requests, summary.failed) == (2, 1)
    assert summary.hit_ratio == pytest.approx(0.4)
    assert summary.ttft.p99 == pytest.approx(0.25)
    assert summary.output_rate == pytest.approx(10)


def test_requests_without_a_time_do_not_count_into_it() -> None:
    single = dataclasses.replace(SAMPLE, tpot=None, output_tokens=1)
    assert summarise([SAMPLE, single], 1.0).tpot.p50 == pytest.approx(0.01)


def test_nothing_at_all_is_not_a_number() -> None:
    summary = summarise([], 1.0)
    assert math.isnan(summary.hit_ratio)
    assert math.isnan(summary.ttft.p50)


def test_kinds_come_apart_and_together() -> None:
    other = dataclasses.replace(SAMPLE, kind=Kind.DOCUMENT, ttft=2.0)
    parts = by_kind([SAMPLE, other], 1.0)
    assert list(parts) == ["chat", "document", ALL]
    assert parts["document"].ttft.p50 == 2.0
    assert parts[ALL].requests == 2


def test_table_sets_runs_side_by_side() -> None:
    better = dataclasses.replace(SAMPLE, cached_tokens=80, ttft=0.125)
    text = table({"round_robin": by_kind([SAMPLE], 1.0), "prefix_affinity": by_kind([better], 1.0)})
    rows = [line.split() for line in text.splitlines()]
    assert ["chat", "round_robin", "1", "40.0%", *["250"] * 3, *["10.0"] * 3, "20"] in rows
    assert ["prefix_affinity", "1", "80.0%", *["125"] * 3, *["10.0"] * 3, "20"] in rows
    assert max(map(len, text.splitlines())) <= 110
