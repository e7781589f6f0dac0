from gateway.config import ClassLimits, Scheduling
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pools import ANY_MODEL, Pools
from gateway.scheduling.ticket import Ticket
from gateway.types import WorkClass
from policies.base import RouteRequest
from policies.registry import build


def pools() -> Pools:
    return Pools(build("round_robin", {}), Scheduling(), lambda: 0.0)


def ask(all_pools: Pools, model: str) -> str | None:
    pool = all_pools.get(model)
    assert pool is not None
    lease = pool.submit(Ticket(RouteRequest(model), lambda lease: None, lambda refusal: None))
    return None if lease is None else lease.backend_id


def test_each_model_is_served_by_its_own_backends() -> None:
    a, b = BackendLoad("a"), BackendLoad("b")
    served = pools()
    served.update({"m": [a], "n": [a, b], ANY_MODEL: [a, b]})
    assert {ask(served, "m") for _ in range(4)} == {"a"}
    assert {ask(served, "n") for _ in range(4)} == {"a", "b"}
    assert served.get("unknown") is None


def test_a_model_that_nobody_serves_any_more_loses_its_pool() -> None:
    served = pools()
    served.update({"m": [BackendLoad("a")]})
    served.update({})
    assert served.get("m") is None


def test_tickets_keep_the_pool_of_a_model_whose_backends_are_away() -> None:
    a = BackendLoad("a")
    served = Pools(
        build("round_robin", {}),
        Scheduling(decode=ClassLimits(max_requests=1)),
        lambda: 0.0,
    )
    served.update({"m": [a]})
    first = served.get("m")
    assert first is not None
    lease = first.submit(Ticket(RouteRequest("m"), lambda lease: None, lambda refusal: None))
    assert lease is not None
    granted = []
    assert first.submit(Ticket(RouteRequest("m"), granted.append, lambda refusal: None)) is None
    served.update({})
    assert served.get("m") is first
    lease.release()
    assert not granted
    served.update({"m": [a]})
    assert [lease.backend_id for lease in granted] == ["a"]
    assert first.depth(WorkClass.DECODE) == 0


def test_another_policy_applies_to_all_pools() -> None:
    served = pools()
    served.update({"m": [BackendLoad("a")], "n": [BackendLoad("b")]})
    served.policy = build("least_load", {})
    assert {pool.policy.name for pool in served} == {"least_load"}


def test_a_ticket_goes_nowhere_it_must_avoid() -> None:
    a, b = BackendLoad("a"), BackendLoad("b")
    served = pools()
    served.update({"m": [a, b]})
    pool = served.get("m")
    assert pool is not None
    for _ in range(4):
        ticket = Ticket(RouteRequest("m"), lambda lease: None, lambda refusal: None, avoid=("a",))
        lease = pool.submit(ticket)
        assert lease is not None
        assert lease.backend_id == "b"


def test_other_settings_apply_to_all_pools_and_to_those_that_come() -> None:
    served = pools()
    served.update({"m": [BackendLoad("a")]})
    served.scheduling = Scheduling(decode=ClassLimits(max_requests=1))
    served.update({"m": [BackendLoad("b")], "n": [BackendLoad("c")]})
    assert {pool.scheduling.decode.max_requests for pool in served} == {1}
    assert [ask(served, "m"), ask(served, "m")] == ["b", None]
