from gateway.types import Reason
from policies.least_load import LeastLoad, LeastLoadParams
from tests.policies.views import View, counts, request, views


def policy() -> LeastLoad:
    return LeastLoad(LeastLoadParams())


def test_work_counts_not_connections() -> None:
    candidates = [View("a", in_flight=1, pending_tokens=20_000), View("b", in_flight=30)]
    decision = policy().choose(request(), candidates)
    assert (decision.backend, decision.reason) == ("b", Reason.LOAD)
    assert decision.scores[0] > decision.scores[1]


def test_a_faster_backend_carries_more() -> None:
    candidates = [
        View("a", pending_tokens=3000, prefill_rate=10_000),
        View("b", pending_tokens=2000, prefill_rate=5_000),
    ]
    assert policy().choose(request(), candidates).backend == "a"


def test_equally_busy_backends_take_turns() -> None:
    least_load, candidates = policy(), views("abcd")
    spread = counts(lambda _: least_load.choose(request(), candidates).backend, 40)
    assert spread == dict.fromkeys("abcd", 10)


def test_one_candidate() -> None:
    assert policy().choose(request(), views("a")).reason is Reason.ONLY


def test_explain_adds_up() -> None:
    candidates = [View("a", in_flight=3, pending_tokens=500), View("b")]
    terms = policy().explain(request(), candidates)
    scores = policy().choose(request(), candidates).scores
    assert tuple(term["total"] for term in terms) == scores
    assert all(term["queue"] + term["streams"] == term["total"] for term in terms)
