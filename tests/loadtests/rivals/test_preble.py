import pytest

from loadtests.rivals.preble import Preble, PrebleParams
from tests.loadtests.rivals.engines import Engine, engines, place
from tests.policies.views import chain, request


def loaded(rival: Preble, engine: Engine, tokens: int, now: float = 0.0) -> None:
    rival.placed(request(tokens=tokens, links=chain(f"load {engine.id} {now}"), now=now), engine)


def test_it_exploits_when_more_is_cached_than_not() -> None:
    rival, candidates = Preble(PrebleParams()), engines("ab")
    loaded(rival, candidates[0], 50_000)
    assert rival.choose(request(tokens=1000, held={"a": 510}), candidates).backend == "a"
    assert rival.choose(request(tokens=1000, held={"a": 500}), candidates).backend == "b"


def test_of_several_that_hold_most_the_least_loaded() -> None:
    rival, candidates = Preble(PrebleParams()), engines("abc")
    loaded(rival, candidates[0], 10_000)
    loaded(rival, candidates[1], 5_000)
    held = request(tokens=1000, held={"a": 900, "b": 900})
    assert rival.choose(held, candidates).backend == "b"


def test_exploring_adds_load_eviction_and_prefill() -> None:
    rival, candidate = Preble(PrebleParams()), Engine("a", capacity_tokens=2000.0)
    for held in ({}, {"a": 1000}):
        rival.placed(request(tokens=1000, links=chain(*"0123456789"), held=held), candidate)
    candidate.in_flight = 2
    newcomer = request(tokens=1500, links=chain(*"abcdefghijklmno"), output=100)
    [terms] = rival.explain(newcomer, [candidate])
    prefill = 0.1 * (1 + 500 / 30_000) + 1000 * 8e-3 / 2048
    assert terms["load"] == pytest.approx(prefill + 2 * 100 * (8e-3 + 2 * 3e-5))
    # Five blocks of 100 tokens go, each used twice, and half of what was asked for was a hit.
    assert terms["eviction"] == pytest.approx(0.5 * 10 * 100 / 10_000)
    assert terms["cost"] == pytest.approx(
        sum(terms[term] for term in ("load", "eviction", "prefill"))
    )


def test_what_would_exploit_the_heaviest_goes_to_the_lightest() -> None:
    rival, candidates = Preble(PrebleParams()), engines("ab")
    held = request(tokens=1000, held={"a": 1000})
    for turn in range(49):
        loaded(rival, candidates[turn % 2], 1000)
    loaded(rival, candidates[1], 1000)
    loaded(rival, candidates[0], 10_000)
    assert rival.choose(held, candidates).backend == "a"
    loaded(rival, candidates[0], 4_000)
    assert rival.choose(held, candidates).backend == "b"


def test_no_rebalancing_before_fifty_requests() -> None:
    rival, candidates = Preble(PrebleParams()), engines("ab")
    for _ in range(49):
        place(rival, request(tokens=1000, held={"a": 1000}), candidates)
    loaded_up = request(tokens=1000, held={"a": 900})
    assert place(rival, loaded_up, candidates) == "a"
    assert place(rival, loaded_up, candidates) == "b"


def test_the_window_lags_behind() -> None:
    """A burst that has long been served still counts, and one that waits hardly does."""
    rival, candidates = Preble(PrebleParams()), engines("ab")
    loaded(rival, candidates[0], 20_000, now=0.0)
    candidates[1].pending_tokens = 15_000.0
    assert rival.choose(request(now=170.0), candidates).backend == "b"
    assert rival.choose(request(now=181.0), candidates).backend == "a"


def test_what_would_be_evicted_decides_between_equal_loads() -> None:
    rival = Preble(PrebleParams())
    full, roomy = Engine("a", capacity_tokens=1000.0), Engine("b")
    for engine in (full, roomy):
        rival.placed(request(tokens=1000, links=chain(*"0123456789")), engine)
    newcomer = request(tokens=1000, links=chain(*"abcdefghij"))
    assert rival.choose(newcomer, [full, roomy]).backend == "b"


def test_only_the_heaviest_is_relieved() -> None:
    rival, candidates = Preble(PrebleParams()), engines("abc")
    for _ in range(50):
        loaded(rival, candidates[0], 1000)
    loaded(rival, candidates[1], 60_000)
    assert rival.choose(request(tokens=1000, held={"a": 1000}), candidates).backend == "a"
