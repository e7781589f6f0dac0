from gateway.config import ClassLimits
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.room import has_any_room, with_room
from gateway.types import Match
from policies.base import RouteRequest
from tests.scheduling.virtual import DECODE, PREFILL, ask

LIMITS = ClassLimits(max_requests=2, max_uncached_tokens=1000)


def loaded(id: str, requests: int, uncached: int) -> BackendLoad:
    load = BackendLoad(id)
    for _ in range(requests):
        load.take(load.of(DECODE), uncached, uncached)
    return load


def roomy(request: RouteRequest, *loads: BackendLoad) -> list[str]:
    return [load.id for load in with_room(loads, LIMITS, request)]


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


def test_any_room_is_room_for_a_request_that_brings_nothing() -> None:
    assert has_any_room([loaded("a", 1, 1000)], LIMITS, DECODE)
    assert not has_any_room([loaded("a", 1, 1001)], LIMITS, DECODE)
    assert not has_any_room([loaded("a", 2, 0)], LIMITS, DECODE)
    assert has_any_room([loaded("a", 2, 0)], LIMITS, PREFILL)
    assert not has_any_room([], LIMITS, DECODE)
