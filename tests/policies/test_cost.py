from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import (
    cold_seconds,
    decode_seconds,
    memory_seconds,
    outstanding_seconds,
    placement_seconds,
    prefill_seconds,
    service_seconds,
)
from tests.policies.views import View, request


def test_prefill_counts_only_what_is_not_cached() -> None:
    backend = View("a", prefill_rate=1000, attention_context=inf, step_seconds=0.0)
    assert prefill_seconds(backend, 4000, 3000) == pytest.approx(1.0)
    assert prefill_seconds(backend, 4000, 4000) == 0.0
    assert prefill_seconds(backend, 4000, 5000) == 0.0


def test_the_end_of_a_long_prompt_costs_more_than_its_beginning() -> None:
    backend = View("a", prefill_rate=10_000, attention_context=30_000, step_seconds=0.0)
    beginning = prefill_seconds(backend, 10_000, 0)
    end = prefill_seconds(backend, 100_000, 90_000)
    assert beginning == pytest.approx(1.0 * (1 + 5_000 / 30_000))
    assert end == pytest.approx(1.0 * (1 + 95_000 / 30_000))


def test_every_chunk_of_a_prefill_takes_a_decode_step_longer() -> None:
    facts = {"chunk_tokens": 1000, "step_seconds": 0.01, "stream_seconds": 0.001}
    idle = View("a", attention_context=inf, context_seconds=1e-7, **facts)
    busy = View("b", attention_context=inf, context_seconds=1e-7, **facts)
    busy.decoding, busy.context_tokens = 20, 100_000
    assert prefill_seconds(idle, 5000, 0) == pytest.approx(0.5 + 5 * 0.01)
    assert prefill_seconds(busy, 5000, 0) == pytest.approx(0.5 + 5 * (0.01 + 0.02 + 0.01))


@given(tokens=st.integers(0, 200_000))
def test_cold_is_the_prefill_of_the_whole_on_an_idle_backend(tokens: int) -> None:
    busy = View("a", decoding=50, context_tokens=400_000)
    assert cold_seconds(View("a"), tokens) == pytest.approx(prefill_seconds(View("a"), tokens, 0))
    assert cold_seconds(busy, tokens) == cold_seconds(View("a"), tokens)


def test_a_steps_own_time_is_shared_by_its_streams() -> None:
    facts = {"step_seconds": 0.01, "stream_seconds": 0.001, "context_seconds": 1e-6}
    alone = service_seconds(View("a", **facts), 1000, 100)
    among = service_seconds(View("a", decoding=10, **facts), 1000, 100)
    assert alone == pytest.approx(100 * (0.01 + 0.001 + 0.001))
    assert among == pytest.approx(100 * (0.001 + 0.001 + 0.001))


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
    nearly_full = View("a", capacity_tokens=1000, context_tokens=900)
    assert memory_seconds(nearly_full, request(tokens=50)) == 0.0
    assert memory_seconds(nearly_full, request(tokens=150)) == pytest.approx(150 * 100 / 1000)


def test_what_a_request_shares_takes_no_more_memory() -> None:
    shares = View("a", capacity_tokens=1000, context_tokens=900, shared_tokens=120)
    assert memory_seconds(shares, request(tokens=150)) == 0.0


def test_a_request_without_prompt_is_load_too() -> None:
    busy, idle = View("a", in_flight=1), View("a")
    assert outstanding_seconds(request(), busy) > outstanding_seconds(request(), idle)


@given(
    facts=st.lists(
        st.builds(
            View,
            id=st.sampled_from("abc"),
            in_flight=st.integers(0, 50),
            decoding=st.integers(0, 50),
            context_tokens=st.floats(0, 600_000),
            other_tokens=st.sampled_from([0.0, 100_000.0, 490_000.0]),
            shared_tokens=st.sampled_from([0.0, 20_000.0]),
            usual_rate=st.sampled_from([5_000.0, 10_000.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    held=st.dictionaries(st.sampled_from("abc"), st.integers(0, 40_000)),
    weights=st.tuples(*[st.floats(0, 10)] * 3),
)
def test_a_placement_costs_what_its_terms_add_up_to(
    facts: list[View], held: dict[str, int], weights: tuple[float, float, float]
) -> None:
    theta, eta, omega = weights
    asked = request(tokens=30_000, held=held, output=200)
    queues = [0.1 * place for place in range(len(facts))]
    costs, _ = placement_seconds(asked, facts, queues, theta, eta, omega)
    for view, queue, cost in zip(facts, queues, costs, strict=True):
        own = prefill_seconds(view, 30_000, held.get(view.id, 0))
        price = theta * view.prefill_rate / view.usual_rate + eta * view.decoding
        terms = queue + own * (1 + price)
        terms += omega * decode_seconds(view, 200, 30_000) + memory_seconds(view, asked)
        assert cost == pytest.approx(terms)
