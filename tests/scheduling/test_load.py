from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.types import Decision, Reason
from policies.base import Candidate
from tests.scheduling.virtual import DECODE, PREFILL


def lease(load: BackendLoad) -> Lease:
    return Lease(load, Decision(load.id, Reason.ONLY), DECODE, 100, 40, 0.0, 0.0)


def test_is_a_candidate() -> None:
    candidate: Candidate = BackendLoad("a", prefill_rate=5000.0)
    assert candidate.prefill_rate == 5000.0
    assert candidate.capacity_tokens > 0
    assert candidate.step_seconds > candidate.stream_seconds > 0


def test_classes_have_shares_of_their_own() -> None:
    load = BackendLoad("a")
    lease(load)
    assert load.of(DECODE).in_flight == 1
    assert load.of(PREFILL).in_flight == 0


def test_tells_its_watchers_when_room_comes_free() -> None:
    load, calls = BackendLoad("a"), []
    first, second = (lambda: calls.append(1)), (lambda: calls.append(2))
    load.watch(first)
    load.watch(second)
    held = lease(load)
    assert calls == []
    held.first_token()
    assert sorted(calls) == [1, 2]
    load.unwatch(first)
    held.release()
    assert calls[2:] == [2]


def test_pools_that_share_a_backend_take_turns_at_being_first() -> None:
    load, calls = BackendLoad("a"), []
    load.watch(lambda: calls.append("x"))
    load.watch(lambda: calls.append("y"))
    for _ in range(4):
        load.room_came_free()
    assert calls[::2] == ["x", "y", "x", "y"]
