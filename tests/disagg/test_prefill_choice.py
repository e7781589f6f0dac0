from __future__ import annotations

import pytest

from gateway.disagg.links import Links
from gateway.disagg.prefill_choice import by_cost, by_threshold, soonest
from gateway.disagg.reasons import Why
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.streams import OutputLengths
from gateway.types import Decision, Match, Reason, WorkClass
from policies.base import RouteRequest

D = BackendLoad("d")


def request(prompt: int, cached: int) -> RouteRequest:
    return RouteRequest("m", prompt_tokens=prompt, match=Match({"d": 1}, {"d": float(cached)}))


@pytest.mark.parametrize("cached", [0, 500, 1000])
@pytest.mark.parametrize(("off", "why"), [(-1, Why.SHORT), (0, Why.WORTH), (1, Why.WORTH)])
def test_p13_the_threshold_counts_what_the_decode_engine_lacks(
    cached: int, off: int, why: Why
) -> None:
    choice = by_threshold(1000)(request(1000 + off + cached, cached), D, [BackendLoad("p")])
    assert choice.why is why
    assert (choice.engine is None) is (why is Why.SHORT)


def test_p13_a_threshold_of_0_hands_over_all() -> None:
    assert by_threshold(0)(request(1000, 1000), D, [BackendLoad("p")]).why is Why.WORTH


def test_it_says_when_a_prefill_engine_is_missed() -> None:
    assert by_threshold(1000)(request(1000, 0), D, []).why is Why.NO_PREFILL
    assert by_threshold(1000)(request(999, 0), D, []).why is Why.SHORT


def test_the_soonest_is_the_one_that_holds_most_unless_it_is_busy() -> None:
    cold, warm = BackendLoad("cold"), BackendLoad("warm")
    held = RouteRequest("m", prompt_tokens=8000, match=Match({"warm": 1}, {"warm": 6000.0}))
    assert soonest(held, [cold, warm]) is warm
    slow = BackendLoad("warm", prefill_rate=500.0)
    assert soonest(held, [cold, slow]) is cold


@pytest.mark.parametrize(("bandwidth", "why"), [(50e9, Why.WORTH), (1e8, Why.SOONER)])
def test_over_a_fast_network_a_stream_is_worth_sparing(bandwidth: float, why: Why) -> None:
    busy = BackendLoad("d")
    busy.pace = 0.05
    stream = Lease(
        busy,
        Decision("d", Reason.LOAD),
        WorkClass.DECODE,
        100,
        0,
        0.0,
        lambda: 0.0,
        lengths=OutputLengths(),
    )
    stream.progress = lambda: 1
    stream.first_token()
    choose = by_cost(lambda model: Links(131_072.0, fixed=bandwidth).seconds)
    choice = choose(request(20_000, 0), busy, [BackendLoad("p")])
    assert choice.why is why
    assert (choice.engine is None) is (why is Why.SOONER)


def test_by_cost_the_cheaper_prefill_engine_is_taken_and_an_idle_decode_engine_spared_the_way() -> (
    None
):
    choose = by_cost(lambda model: Links(131_072.0, fixed=50e9).seconds)
    asked = RouteRequest("m", prompt_tokens=20_000, match=Match({"warm": 1}, {"warm": 19_000.0}))
    cold, warm = BackendLoad("cold"), BackendLoad("warm")
    assert choose(asked, D, [cold, warm]).engine is warm
    assert choose(asked, D, [cold]).why is Why.SOONER
    assert choose(asked, D, []).why is Why.SOONER
