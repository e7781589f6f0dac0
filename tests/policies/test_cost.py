import pytest

from policies.cost import (
    decode_seconds,
    memory_seconds,
    outstanding_seconds,
    prefill_seconds,
    queue_seconds,
)
from tests.policies.views import View


def test_queue_is_pending_work_over_rate() -> None:
    assert queue_seconds(View("a", pending_tokens=5000, prefill_rate=2500)) == 2.0


def test_prefill_counts_only_what_is_not_cached() -> None:
    backend = View("a", prefill_rate=1000)
    assert prefill_seconds(backend, 4000, 3000, 1e9) == pytest.approx(1.0, rel=1e-4)
    assert prefill_seconds(backend, 4000, 4000, 1e9) == 0.0
    assert prefill_seconds(backend, 4000, 5000, 1e9) == 0.0


def test_the_end_of_a_long_prompt_costs_more_than_its_beginning() -> None:
    backend = View("a", prefill_rate=10_000)
    beginning = prefill_seconds(backend, 10_000, 0, 30_000)
    end = prefill_seconds(backend, 100_000, 90_000, 30_000)
    assert beginning == pytest.approx(1.0 * (1 + 5_000 / 30_000))
    assert end == pytest.approx(1.0 * (1 + 95_000 / 30_000))


def test_decode_counts_the_slow_down_of_the_others() -> None:
    alone = decode_seconds(View("a", step_seconds=0.01, stream_seconds=0.001), 100, 0)
    among = decode_seconds(View("a", in_flight=5, step_seconds=0.01, stream_seconds=0.001), 100, 0)
    assert alone == pytest.approx(100 * 0.011)
    assert among - alone == pytest.approx(100 * 0.001 * 5 * 2)


def test_a_long_context_slows_every_stream_down_cached_or_not() -> None:
    busy = View("a", in_flight=4, context_tokens=20_000, context_seconds=1e-7)
    short, long = decode_seconds(busy, 100, 0), decode_seconds(busy, 100, 8_000)
    # each of the five streams waits for eight thousand more tokens to be read, at each step
    assert long - short == pytest.approx(100 * 1e-7 * 8_000 * 5)


def test_memory_costs_nothing_until_nearly_full() -> None:
    assert memory_seconds(View("a", capacity_tokens=1000, context_tokens=900), 50) == 0.0
    over = memory_seconds(View("a", capacity_tokens=1000, context_tokens=900), 150)
    assert over == pytest.approx(150 * 100 / 1000)


def test_a_request_without_prompt_is_load_too() -> None:
    assert outstanding_seconds(View("a", in_flight=1)) > outstanding_seconds(View("a"))
