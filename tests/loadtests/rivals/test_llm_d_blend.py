import pytest

from loadtests.rivals.llm_d_blend import LlmdBlend, LlmdBlendParams
from tests.loadtests.rivals.engines import Engine
from tests.policies.views import request


def test_the_weighted_sum() -> None:
    rival = LlmdBlend(LlmdBlendParams())
    candidates = [
        Engine("a", in_flight=10, decoding=6, context_tokens=100_000.0),
        Engine("b", in_flight=3, decoding=3, context_tokens=50_000.0),
        Engine("c", in_flight=2, decoding=0, context_tokens=900_000.0),
    ]
    decision = rival.choose(request(tokens=1000, held={"a": 800}), candidates)
    assert decision.scores == pytest.approx((-(2.4 + 0.0 + 1.6), -(2.0 + 1.8), -(1.0 + 0.0)))
    assert decision.backend == "a"


def test_one_waiting_request_more_counts_like_sixty() -> None:
    rival = LlmdBlend(LlmdBlendParams())
    one, idle = Engine("a", in_flight=1), Engine("b")
    partly = request(tokens=1000, held={"a": 600})
    assert rival.choose(partly, [one, idle]).backend == "b"
    sixty = Engine("a", in_flight=60)
    assert rival.choose(partly, [sixty, idle]).scores == rival.choose(partly, [one, idle]).scores


def test_long_prompts_that_wait_do_not_count() -> None:
    rival = LlmdBlend(LlmdBlendParams())
    candidates = [Engine("a", in_flight=1, pending_tokens=100_000.0), Engine("b", in_flight=1)]
    assert rival.choose(request(held={"a": 100}), candidates).backend == "a"


def test_equal_queues_score_in_full() -> None:
    rival = LlmdBlend(LlmdBlendParams())
    terms = rival.explain(request(), [Engine("a", in_flight=3), Engine("b", in_flight=3)])
    assert [term["queue"] for term in terms] == [1.0, 1.0]
