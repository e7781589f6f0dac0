"""The short form of `make chaos`: the same promises, a few seconds of it."""

from __future__ import annotations

from loadtests.chaos import kill, report, run
from loadtests.chaos.faults import OF_PROCESSES
from loadtests.chaos.kill import Kill
from loadtests.chaos.run import Plan

SOME = Plan(requests=1500, engines=5, seed=4, clients=16, first_token=0.02)


def test_promises_are_kept_while_everything_fails() -> None:
    result = run.run(SOME)
    assert result.violations.lines() == []
    assert sum(result.outcomes.values()) == result.requests > SOME.requests
    assert result.outcomes["ok"] > SOME.requests * 0.3
    assert result.outcomes["cancelled"] > SOME.requests * 0.1
    assert result.left > SOME.requests * 0.2
    assert len(result.faults) > 5
    assert any(result.faults[fault] for fault in OF_PROCESSES)
    assert result.metrics.total("prefixgate_retries_total") > 0
    assert "| violations | none |" in report.table(result)


def test_an_engine_that_is_killed_comes_back() -> None:
    """Fewer requests than in the real run, so that the retries for all of them are there."""
    killed = kill.run(
        Kill(rate=40, before=1.5, dead=1.0, after=1.0, first_token=0.05, probe_interval=1.0)
    )
    assert killed.violations.lines() == []
    assert killed.noticed < 5.0
    assert killed.back < 1.0 + 2.0  # the machine may be busy
    assert killed.serving < float("inf")
    assert "| violations | none |" in kill.table(killed)
