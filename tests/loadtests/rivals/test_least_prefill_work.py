from loadtests.rivals.least_prefill_work import LeastPrefillWork
from loadtests.rivals.lowest_cost import NoParams
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import counts, request


def test_pending_and_own_uncached_tokens_add_up() -> None:
    rival = LeastPrefillWork(NoParams())
    candidates = [Engine("a", pending_tokens=700.0), Engine("b", pending_tokens=0.0)]
    decision = rival.choose(request(tokens=1000, held={"a": 800}), candidates)
    assert decision.scores == (900.0, 1000.0)
    assert decision.backend == "a"
    candidates[0].pending_tokens = 900.0
    assert rival.choose(request(tokens=1000, held={"a": 800}), candidates).backend == "b"


def test_streams_do_not_count_except_between_equals() -> None:
    rival = LeastPrefillWork(NoParams())
    candidates = [Engine("a", in_flight=200), Engine("b", in_flight=1)]
    assert rival.choose(request(held={"a": 100}), candidates).backend == "a"
    assert rival.choose(request(), candidates).backend == "b"


def test_equals_take_turns() -> None:
    rival, candidates = LeastPrefillWork(NoParams()), engines("abcd")
    drawn = counts(lambda _: rival.choose(request(), candidates).backend, 40)
    assert drawn == dict.fromkeys("abcd", 10)
