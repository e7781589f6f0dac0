from gateway.config import ClassLimits, LengthRange
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.room import share_range, with_room
from gateway.types import Match
from policies.base import RouteRequest
from tests.scheduling.virtual import DECODE, PREFILL, ask

RANGES = (
    LengthRange(min_tokens=10_000, max_requests=2),
    LengthRange(min_tokens=20_000, max_cache_share=0.1),
)
LIMITS = ClassLimits(max_requests=2, max_uncached_tokens=1000)


def loaded(id: str, requests: int, uncached: int) -> BackendLoad:
    load = BackendLoad(id)
    for _ in range(requests):
        load.take(object(), load.of(DECODE), uncached, uncached, 0.0, 0.0)
    return load


def roomy(request: RouteRequest, *loads: BackendLoad) -> list[str]:
    return [load.id for load in with_room(loads, LIMITS, RANGES, request)]


def test_slots_and_budget_are_each_backends_own() -> None:
    full = loaded("full", 2, 0)
    heavy = loaded("heavy", 1, 950)
    idle = BackendLoad("idle")
    assert roomy(ask(DECODE, 100), full, heavy, idle) == ["idle"]
    assert roomy(ask(DECODE, 50), full, heavy, idle) == ["heavy", "idle"]


def test_what_counts_is_uncached_there() -> None:
    heavy, other = loaded("heavy", 1, 950), loaded("other", 1, 950)
    assert roomy(ask(DECODE, 500, Match({"heavy": 5}, {"heavy": 450.0})), heavy, other) == ["heavy"]


def test_the_other_classes_load_does_not_count() -> None:
    assert roomy(ask(PREFILL, 900), loaded("a", 2, 950)) == ["a"]


def test_too_large_a_request_goes_only_where_it_is_alone() -> None:
    assert roomy(ask(DECODE, 5000), loaded("a", 1, 1), BackendLoad("b")) == ["b"]


def long_ones(*tokens: int) -> BackendLoad:
    load = BackendLoad("a", capacity_tokens=500_000)
    for prompt in tokens:
        load.take(object(), load.of(PREFILL), prompt, 0, 0.0, 0.0)
    return load


def long_hit(tokens: int) -> RouteRequest:
    return ask(DECODE, tokens, Match({"a": 9}, {"a": float(tokens)}))


def test_long_prompts_have_limits_of_their_own_over_all_classes() -> None:
    assert roomy(long_hit(10_000), long_ones(10_000)) == ["a"]
    assert roomy(long_hit(10_000), long_ones(10_000, 10_000)) == []
    assert roomy(long_hit(9_999), long_ones(10_000, 10_000)) == ["a"]


def test_long_prompts_fill_only_a_share_of_the_cache() -> None:
    assert roomy(long_hit(29_000), long_ones(21_000)) == ["a"]
    assert roomy(long_hit(29_001), long_ones(21_000)) == []
    # alone, one of any length goes; shorter ones do not count
    assert roomy(long_hit(400_000), long_ones()) == ["a"]
    assert roomy(long_hit(400_000), long_ones(19_999)) == ["a"]


def test_who_shares_a_range() -> None:
    long = ask(PREFILL, 10_000)
    assert not share_range(long, ask(DECODE, 9_999), RANGES)
    assert share_range(long, ask(DECODE, 10_000), RANGES)
    assert share_range(long, ask(PREFILL, 99_000), RANGES)
