import pytest

from gateway.types import Reason
from loadtests.rivals.vllm_load_aware import VllmLoadAware, VllmLoadAwareParams
from tests.loadtests.rivals.engines import Engine, engines, place
from tests.policies.views import request


def test_share_cached_less_load_relative_to_the_mean() -> None:
    rival = VllmLoadAware(VllmLoadAwareParams())
    candidates = [Engine("a", in_flight=6), Engine("b", in_flight=2)]
    decision = rival.choose(request(tokens=1000, held={"a": 900}), candidates)
    assert decision.scores == pytest.approx((0.5 - 0.9, -0.5))
    assert decision.backend == "b"
    calmer = VllmLoadAware(VllmLoadAwareParams(beta=0.5))
    assert calmer.choose(request(tokens=1000, held={"a": 900}), candidates).backend == "a"


def test_a_nearly_idle_fleet_is_not_imbalanced() -> None:
    rival = VllmLoadAware(VllmLoadAwareParams())
    candidates = [Engine("a", in_flight=1), *engines("bcd")]
    decision = rival.choose(request(tokens=1000, held={"a": 1000}), candidates)
    assert decision.scores == pytest.approx((0.75 - 1.0, -0.25, -0.25, -0.25))
    assert decision.backend == "a"


def test_strangers_go_by_session_or_by_request_rate() -> None:
    rival, candidates = VllmLoadAware(VllmLoadAwareParams()), engines("abc")
    assert [place(rival, request(now=0.0), candidates) for _ in range(4)] == list("abca")
    with_session = request(session="s", now=1.0)
    homes = {rival.choose(with_session, candidates).backend for _ in range(5)}
    assert len(homes) == 1
    assert rival.choose(with_session, candidates).reason is Reason.SESSION
    assert rival.choose(request(now=100.0), candidates).backend == "a"
