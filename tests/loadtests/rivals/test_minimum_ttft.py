import pytest

from loadtests.rivals.lowest_cost import NoParams
from loadtests.rivals.minimum_ttft import MinimumTtft
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import counts, request


def test_queue_and_own_prefill_with_attention() -> None:
    rival = MinimumTtft(NoParams())
    candidates = [Engine("a", pending_tokens=10_000.0), Engine("b")]
    [held, idle] = rival.explain(request(tokens=30_000, held={"a": 15_000}), candidates)
    step = 8e-3 / 2048  # each token's part of the steps that its chunks take
    there, cold = 1.5 * 1.75 + 15_000 * step, 3.0 * 1.5 + 30_000 * step
    assert held == pytest.approx({"queue": 1.0, "prefill": there, "cost": 1.0 + there})
    assert idle == pytest.approx({"queue": 0.0, "prefill": cold, "cost": cold})
    assert rival.choose(request(tokens=30_000, held={"a": 15_000}), candidates).backend == "a"


def test_it_leaves_the_cache_as_soon_as_waiting_costs_more() -> None:
    rival = MinimumTtft(NoParams())
    candidates = [Engine("a", pending_tokens=1100.0), Engine("b")]
    assert rival.choose(request(tokens=1000, held={"a": 1000}), candidates).backend == "b"


def test_equals_take_turns() -> None:
    rival, candidates = MinimumTtft(NoParams()), engines("abcd")
    drawn = counts(lambda _: rival.choose(request(), candidates).backend, 40)
    assert drawn == dict.fromkeys("abcd", 10)
