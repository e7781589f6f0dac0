import pytest

from gateway.fleet.upstream import FailureKind, UpstreamFailure
from gateway.http.retry import RetryBudget, is_unserved


def test_retries_are_a_share_of_the_traffic() -> None:
    budget = RetryBudget(0.2)
    retries = 0
    for _ in range(1000):
        budget.earn()
        retries += budget.spend()
    assert 200 <= retries <= 200 + RetryBudget.BURST


def test_quiet_times_earn_no_more_than_a_burst() -> None:
    budget = RetryBudget(1.0)
    for _ in range(1000):
        budget.earn()
    assert sum(budget.spend() for _ in range(1000)) == RetryBudget.BURST


def test_no_share_means_no_retry() -> None:
    budget = RetryBudget(0.0)
    budget.earn()
    assert not budget.spend()


@pytest.mark.parametrize("kind", list(FailureKind))
def test_after_the_head_nothing_is_tried_again(kind: FailureKind) -> None:
    assert not is_unserved(UpstreamFailure(kind), 200, True)


@pytest.mark.parametrize("kind", [FailureKind.FIRST_BYTE_TIMEOUT, FailureKind.IDLE_TIMEOUT])
def test_long_waits_are_not_repeated(kind: FailureKind) -> None:
    assert not is_unserved(UpstreamFailure(kind), 0, True)


@pytest.mark.parametrize("kind", [FailureKind.CONNECT, FailureKind.RESET, FailureKind.INCOMPLETE])
def test_before_the_head_another_backend_may_serve(kind: FailureKind) -> None:
    assert is_unserved(UpstreamFailure(kind), 0, True)


def test_what_may_change_an_engine_is_repeated_only_when_nothing_was_sent() -> None:
    assert is_unserved(UpstreamFailure(FailureKind.CONNECT), 0, False)
    assert not is_unserved(UpstreamFailure(FailureKind.RESET), 0, False)
