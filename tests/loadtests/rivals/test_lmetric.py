from loadtests.rivals.lmetric import LMetric, LMetricParams
from tests.loadtests.rivals.engines import Engine
from tests.policies.views import request


def test_the_product_of_tokens_and_requests() -> None:
    rival = LMetric(LMetricParams())
    candidates = [
        Engine("a", in_flight=9, pending_tokens=100.0),
        Engine("b", in_flight=2),
        Engine("c", in_flight=1, pending_tokens=600.0),
    ]
    decision = rival.choose(request(tokens=1000, held={"a": 900}), candidates)
    assert decision.scores == (2000.0, 3000.0, 3200.0)
    assert decision.backend == "a"


def test_without_what_waits() -> None:
    rival = LMetric(LMetricParams(count_pending=False))
    candidates = [Engine("a", in_flight=1, pending_tokens=50_000.0), Engine("b", in_flight=2)]
    assert rival.choose(request(tokens=1000), candidates).scores == (2000.0, 3000.0)


def test_a_full_hit_is_free_however_many_streams_there_are() -> None:
    rival = LMetric(LMetricParams())
    candidates = [Engine("a", in_flight=200, decoding=200), Engine("b")]
    assert rival.choose(request(held={"a": 1000}), candidates).backend == "a"


def test_equal_products_go_to_the_fewest_requests() -> None:
    rival = LMetric(LMetricParams())
    candidates = [Engine("a", in_flight=3), Engine("b", in_flight=1), Engine("c", in_flight=1)]
    everywhere = request(held=dict.fromkeys("abc", 1000))
    assert rival.choose(everywhere, candidates).backend == "b"
