from gateway.http.retry import RetryBudget


def test_retries_are_a_share_of_the_traffic() -> None:
    budget = RetryBudget(0.2)
    retries = 0
    for _ in range(1000):
        budget.earn()
        retries += budget.spend()
    assert 200 <= retries <= 200 + RetryBudget.FIRST


def test_what_is_not_used_is_kept_for_a_burst() -> None:
    budget = RetryBudget(0.2)
    for _ in range(600):  # 3 s at 200 a second
        budget.earn()
    assert sum(budget.spend() for _ in range(1000)) >= 100


def test_quiet_times_earn_no_more_than_a_burst() -> None:
    budget = RetryBudget(1.0)
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(10_000)) == RetryBudget.MOST


def test_no_share_means_no_retry() -> None:
    budget = RetryBudget(0.0)
    budget.earn()
    assert not budget.spend()


def test_without_a_share_what_was_left_is_not_spent() -> None:
    budget = RetryBudget(1.0)
    budget.share = 0.0
    assert not budget.spend()
