import pytest

from gateway.types import Reason
from loadtests.rivals.sglang_cache_aware import (
    SglangCacheAware,
    SglangCacheAwareLibrary,
    SglangLibraryParams,
    SglangParams,
)
from tests.loadtests.rivals.engines import Engine, engines, place
from tests.policies.views import chain, counts, request


def test_a_match_above_the_threshold_goes_to_its_owner() -> None:
    rival, candidates = SglangCacheAware(SglangParams()), engines("abc")
    owner = place(rival, request(links=chain("x", "1")), candidates)
    [busy] = [candidate for candidate in candidates if candidate.id == owner]
    busy.in_flight = 60
    again = rival.choose(request(links=chain("x", "1", "2")), candidates)
    assert (again.backend, again.reason) == (owner, Reason.PREFIX)
    three_tenths = request(links=chain("x", "1", "new", *"abcd"))
    assert rival.choose(three_tenths, candidates).backend != owner


def test_a_difference_of_64_requests_and_half_as_many_again_is_imbalance() -> None:
    rival, candidates = SglangCacheAware(SglangParams()), engines("ab")
    owner = place(rival, request(links=chain("x")), candidates)
    held = request(links=chain("x", "2"))
    for busy, idle, expected in (
        (64, 0, "owner"),
        (65, 0, "other"),
        (202, 134, "other"),
        (201, 134, "owner"),
    ):
        for candidate in candidates:
            candidate.in_flight = busy if candidate.id == owner else idle
        chosen = rival.choose(held, candidates).backend
        assert ("owner" if chosen == owner else "other") == expected, (busy, idle)


def test_the_library_is_stricter() -> None:
    rival, candidates = SglangCacheAwareLibrary(SglangLibraryParams()), engines("ab")
    owner = place(rival, request(links=chain("x", "1")), candidates)
    [busy] = [candidate for candidate in candidates if candidate.id == owner]
    busy.in_flight = 32
    assert rival.choose(request(links=chain("x", "1", "2")), candidates).backend == owner
    busy.in_flight = 33
    assert rival.choose(request(links=chain("x", "1", "2")), candidates).backend != owner
    busy.in_flight = 1
    assert rival.choose(request(links=chain("x", "1", "2", "3")), candidates).backend != owner


def test_of_several_owners_the_first_whatever_its_load() -> None:
    rival, a, b = SglangCacheAware(SglangParams()), Engine("a"), Engine("b")
    prompt = request(links=chain("x"))
    rival.placed(prompt, a)
    rival.placed(prompt, b)
    rival.placed(prompt, b)
    a.in_flight = 60
    assert rival.choose(prompt, [a, b]).backend == "a"


def test_long_prompts_are_invisible_to_the_guard() -> None:
    rival, candidates = SglangCacheAware(SglangParams()), engines("ab")
    owner = place(rival, request(links=chain("x")), candidates)
    [busy] = [candidate for candidate in candidates if candidate.id == owner]
    busy.in_flight, busy.pending_tokens = 30, 3_000_000.0
    assert rival.choose(request(links=chain("x", "2")), candidates).backend == owner


def test_equally_busy_backends_share_strangers() -> None:
    rival, candidates = SglangCacheAware(SglangParams()), engines("abcd")
    drawn = counts(lambda turn: place(rival, request(links=chain(str(turn))), candidates), 40)
    assert drawn == dict.fromkeys("abcd", 10)


def test_an_owner_that_is_away_sends_its_prompts_to_the_first() -> None:
    rival = SglangCacheAware(SglangParams())
    rival.placed(request(links=chain("x")), Engine("gone"))
    candidates = [Engine("a", in_flight=9), Engine("b")]
    assert rival.choose(request(links=chain("x")), candidates).backend == "a"


@pytest.mark.parametrize(("now", "remembered"), [(119.0, True), (120.0, False)])
def test_the_tree_is_cut_back_from_time_to_time(now: float, remembered: bool) -> None:
    rival, a, b = SglangCacheAware(SglangParams(max_tree_blocks=1)), Engine("a"), Engine("b")
    rival.placed(request(links=chain("old")), a)
    rival.placed(request(links=chain("new"), now=now), a)
    a.in_flight = 1
    kept = rival.choose(request(links=chain("old")), [a, b]).backend == "a"
    assert kept is remembered
