from loadtests.rivals.least_in_flight import LeastInFlight
from loadtests.rivals.lowest_cost import NoParams
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import counts, request


def test_fewest_requests_whatever_they_are() -> None:
    rival = LeastInFlight(NoParams())
    candidates = [Engine("a", in_flight=2), Engine("b", in_flight=1, pending_tokens=100_000.0)]
    assert rival.choose(request(held={"a": 1000}), candidates).backend == "b"


def test_equals_take_turns() -> None:
    rival, candidates = LeastInFlight(NoParams()), engines("abcd", in_flight=5)
    assert counts(lambda _: rival.choose(request(), candidates).backend, 40) == dict.fromkeys(
        "abcd", 10
    )
