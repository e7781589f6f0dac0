"""Factors learnt from simulated engines, whose real ones are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.estimates.rates import Rates
from gateway.estimates.shape import EngineShape
from tests.estimates.engines import Fleet


def close(fleet: Fleet, slower: Sequence[float], rel: float) -> bool:
    found = [factor for pair in fleet.factors() for factor in pair]
    wanted = [factor for factor in slower for _ in range(2)]
    return found == pytest.approx(wanted, rel=rel)


def stays(fleet: Fleet, slower: Sequence[float], rel: float, seconds: int) -> None:
    for _ in range(seconds // 5):
        assert close(fleet, slower, rel), fleet.factors()
        fleet.run(5)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_equal_engines_stay_equal(load: float, seed: int) -> None:
    fleet = Fleet([1, 1, 1, 1], load, seed)
    stays(fleet, [1, 1, 1, 1], 0.1, 200)


@pytest.mark.parametrize("slower", [[1, 1, 2, 2], [1, 1, 1, 4], [1, 2, 4], [0.5, 1, 1]])
@pytest.mark.parametrize("load", [0.4, 0.8])
def test_unequal_engines_are_told_apart(slower: list[float], load: float) -> None:
    fleet = Fleet(slower, load, 1)
    fleet.run(60)
    stays(fleet, slower, 0.2, 120)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_silent_change_is_noticed_and_so_is_the_recovery(seed: int) -> None:
    fleet = Fleet([1, 1, 1, 1], 0.6, seed)
    fleet.run(120)
    fleet.slow(0, 3)
    fleet.run(75)
    stays(fleet, [3, 1, 1, 1], 0.2, 60)
    fleet.slow(0, 1)
    fleet.run(60)
    stays(fleet, [1, 1, 1, 1], 0.2, 60)


def test_misjudged_cache_hits_are_not_taken_for_slowness() -> None:
    fleet = Fleet([1, 1, 2, 2], 0.5, 1, misjudged=0.05)
    fleet.run(60)
    stays(fleet, [1, 1, 2, 2], 0.25, 120)


@pytest.mark.parametrize("streamed", [0.5, 0.1, 0.0])
def test_answers_that_are_not_streamed_tell_something_too(streamed: float) -> None:
    slower = [1, 1, 2, 4]
    fleet = Fleet(slower, 0.7, 1, streamed=streamed)
    fleet.run(120)
    stays(fleet, slower, 0.3, 60)


def test_factors_go_into_the_shape() -> None:
    slow = EngineShape(prefill_rate=9_000.0).slower(3.0, 2.0)
    assert slow.prefill_rate == 3_000.0
    assert slow.prefill(1_000, 500) == pytest.approx(500 / 3_000 * (1 + 750 / 30_000))
    assert slow.step(10, 1_000) == pytest.approx(2 * (8e-3 + 10 * 3e-5 + 1_000 * 8e-8))


def make(**options: float) -> Rates:
    rates = Rates(EngineShape())
    for id in "abc":
        rates.add(id, options.get("capacity", 400_000.0))
    return rates


def prefill(rates: Rates, id: str, start: float, factor: float, times: int = 20) -> float:
    """Prompts of one chunk, one after another.

    Returns:
        When the last is done.
    """
    shape = EngineShape()
    seconds = factor * (shape.prefill(2_000, 2_000) + shape.step(0, 0))
    backend = rates[id]
    for number in range(times):
        now = start + number * seconds
        backend.dispatched(number, now, 2_000, 2_000)
        backend.first_token(number, now + seconds)
        backend.finished(number, now + seconds, 1)
    return start + times * seconds


def test_nothing_is_believed_before_it_is_seen() -> None:
    rates = make()
    rates.refresh(0.0)
    assert [(rates[id].prefill, rates[id].decode) for id in rates] == [(1.0, 1.0)] * 3
    assert rates["a"].shape == EngineShape()


def test_a_backend_not_seen_is_taken_to_be_like_the_others() -> None:
    rates = make()
    for id in "ab":
        prefill(rates, id, 0.0, 2.0)
    rates.refresh(10.0)
    assert rates["c"].prefill == pytest.approx(1.8, abs=0.2)
    assert rates["c"].decode == pytest.approx(1.8, abs=0.2)


def test_prompts_that_end_in_one_step_are_one_measurement() -> None:
    rates, shape = make(), EngineShape()
    backend = rates["a"]
    seconds = 3 * shape.prefill(500, 500) + shape.step(0, 0)
    for turn in range(100):
        now = turn * seconds
        for number in range(3):
            backend.dispatched((turn, number), now, 500, 500)
        for number in range(3):
            backend.first_token((turn, number), now + seconds + number * 1e-4)
            backend.dropped((turn, number), now + seconds + number * 1e-4)
    assert backend.prefill == pytest.approx(1.0, abs=0.02)


def test_a_request_that_fails_leaves_no_trace() -> None:
    rates = make()
    backend = rates["a"]
    backend.dispatched("x", 0.0, 1_000, 1_000)
    backend.dropped("x", 50.0)
    backend.dispatched("x", 51.0, 1_000, 1_000)
    backend.dispatched("y", 51.0, 1_000, 1_000)
    backend.dropped("x", 99.0)
    backend.first_token("y", 99.108)
    assert backend.prefill == pytest.approx(1.0, abs=0.05)
    backend.finished("y", 99.2, 1)
    for unknown in (backend.first_token, backend.dropped):
        unknown("nobody", 100.0)
    backend.finished("nobody", 100.0, 7)
    assert backend._prompt_tokens == 0
    assert not backend._streams
    assert not backend._pending


def test_waiting_for_memory_is_not_slowness() -> None:
    rates = make(capacity=2_100.0)
    prefill(rates, "a", 0.0, 4.0)
    assert rates["a"].prefill == 1.0


def test_what_was_seen_long_ago_is_doubted() -> None:
    rates = make()
    for id, factor in (("a", 1.0), ("b", 1.0), ("c", 3.0)):
        prefill(rates, id, 0.0, factor, 60)
    for now in range(100, 200):
        rates.refresh(now)
    assert rates["c"].prefill == pytest.approx(2.8, abs=0.2)
    for now in range(200, 4_000):
        rates.refresh(now)
    assert rates["c"].prefill < 1.2


def test_factors_stay_near_the_median() -> None:
    rates = make()
    for id, factor in (("a", 1.0), ("b", 1.0), ("c", 30.0)):
        for _ in range(20):
            prefill(rates, id, 0.0, factor)
        rates.refresh(0.0)
    assert rates["c"].prefill == pytest.approx(4.0, abs=0.2)


def test_backends_come_and_go() -> None:
    rates = make()
    with pytest.raises(ValueError, match="already"):
        rates.add("a", 1.0)
    rates.remove("a")
    assert list(rates) == ["b", "c"]
    with pytest.raises(KeyError):
        rates.remove("a")


def test_a_long_past_is_no_context() -> None:
    rates = make()
    backend = rates["a"]
    backend.dispatched("long", 0.0, 1_000, 1_000)
    backend.first_token("long", 0.11)
    backend.finished("long", 10_000.0, 1_000_000)
    prefill(rates, "a", 10_000.0, 3.0)
    backend.dispatched("next", 20_000.0, 1_000, 1_000)
    backend.first_token("next", 20_000.3)
    assert backend.decode > 1.1, "what past steps are taken for has changed"
    assert backend._step() == pytest.approx(EngineShape().step(1, 1_000))
