from gateway.types import Reason
from policies.round_robin import RoundRobin, RoundRobinParams
from tests.policies.views import request, views


def test_takes_turns() -> None:
    policy = RoundRobin(RoundRobinParams())
    decisions = [policy.choose(request(), views("abc")) for _ in range(6)]
    assert [decision.backend for decision in decisions] == list("abcabc")
    assert {decision.reason for decision in decisions} == {Reason.ROTATION}


def test_one_candidate() -> None:
    assert RoundRobin(RoundRobinParams()).choose(request(), views("a")).reason is Reason.ONLY
