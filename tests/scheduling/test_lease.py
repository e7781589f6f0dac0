import itertools

import pytest

from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.types import Decision, Reason
from tests.scheduling.virtual import DECODE, PREFILL, VirtualClock, is_clear


def take(load: BackendLoad) -> Lease:
    decision = Decision(load.id, Reason.ONLY)
    return Lease(load, decision, PREFILL, 5000, 3000, 0.3, VirtualClock(), 0.5)


def test_takes_when_it_is_made() -> None:
    load = BackendLoad("a")
    lease = take(load)
    own = load.of(PREFILL)
    assert (load.in_flight, load.decoding) == (1, 0)
    assert (load.pending_tokens, load.context_tokens) == (3000, 5000)
    assert (own.in_flight, own.pending, own.uncached_tokens) == (1, 1, 3000)
    assert load.of(DECODE).in_flight == 0
    assert (lease.backend_id, lease.queue_seconds, lease.uncached_tokens) == ("a", 0.5, 3000)


def test_the_first_token_frees_the_budget_and_keeps_the_slot() -> None:
    load = BackendLoad("a")
    take(load).first_token()
    own = load.of(PREFILL)
    assert (load.in_flight, load.decoding) == (1, 1)
    assert (load.pending_tokens, load.context_tokens) == (0, 5000)
    assert (own.in_flight, own.pending, own.uncached_tokens) == (1, 0, 0)


@pytest.mark.parametrize(
    "calls",
    [
        calls
        for length in (1, 2, 3, 4)
        for calls in itertools.product(("first_token", "release"), repeat=length)
        if "release" in calls
    ],
    ids=">".join,
)
def test_R13_everything_goes_back_exactly_once(calls: tuple[str, ...]) -> None:
    load = BackendLoad("a")
    other = take(load)
    lease = take(load)
    for call in calls:
        getattr(lease, call)()
        assert load.decoding >= 0
        assert load.in_flight >= 1
    assert (load.in_flight, load.decoding, load.pending_tokens) == (1, 0, 3000)
    other.release()
    assert is_clear(load)


def test_a_call_that_changes_nothing_tells_nobody() -> None:
    load, calls = BackendLoad("a"), []
    lease = take(load)
    load.watch(lambda _: calls.append(1))
    lease.release()
    lease.release()
    lease.first_token()
    assert calls == [1]


def test_the_prefill_is_due_behind_what_was_pending() -> None:
    load = BackendLoad("a")
    first, second = take(load), take(load)
    assert first.prefill_due - first.granted_at == pytest.approx(0.3)
    assert second.prefill_due - second.granted_at == pytest.approx(0.6)


def test_what_was_generated_is_told_once() -> None:
    told = []
    lease = Lease(
        BackendLoad("a"),
        Decision("a", Reason.ONLY),
        DECODE,
        10,
        10,
        0.1,
        VirtualClock(),
        on_release=lambda lease: told.append(lease.output_tokens),
    )
    lease.output_tokens = 7
    lease.release()
    lease.release()
    assert told == [7]
