"""After a run in which everything happened, the metrics add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.telemetry.families import FAMILIES
from gateway.types import Reason
from tests.harness.gateway_process import Metrics
from tests.process.script import Script, adds_up


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    played = Script(tmp_path_factory.mktemp("gateway"))
    try:
        played.play()
        yield played
    finally:
        played.close()


@pytest.fixture
def after(script: Script) -> Metrics:
    return script.scrape()


def test_each_request_has_the_one_outcome_it_should_have(script: Script, after: Metrics) -> None:
    assert after.outcomes == dict(script.expected)
    assert after.total("prefixgate_requests_total") == sum(script.expected.values())


def test_all_outcomes_but_our_own_failure_were_seen(script: Script) -> None:
    assert set(script.expected) == {
        *("ok", "client_error", "backpressure", "upstream_error"),
        *("timeout", "cancelled", "rejected"),
    }


def test_decisions_sum_to_routed_requests(script: Script, after: Metrics) -> None:
    assert adds_up(after, script.forgotten)
    assert script.forgotten > 0
    # The one that was still under way when its backend was removed.
    assert after.total("prefixgate_routed_requests_total", backend="other") == 1


def test_every_reason_was_seen(after: Metrics) -> None:
    assert set(after.by("prefixgate_decisions_total", "reason")) == set(Reason)


def test_every_routed_request_is_in_the_histograms(after: Metrics) -> None:
    routed = after.total("prefixgate_decisions_total")
    assert after.total("prefixgate_request_seconds_count") == routed
    assert after.total("prefixgate_queue_wait_seconds_count") == routed


def test_who_was_not_routed_was_refused_or_wrong_or_left(script: Script, after: Metrics) -> None:
    routed = after.total("prefixgate_decisions_total")
    refused = after.total("prefixgate_queue_refusals_total")
    assert refused == 2  # queue full, expired
    left = script.left["body"] + script.left["queue"]
    wrong = {"bad requests": 4, "slow body": 1, "removed model": 1, "ejected model": 1}
    total = after.total("prefixgate_requests_total")
    assert total == routed + refused + left + sum(wrong.values())


def test_clients_that_left_are_counted_where_they_were(script: Script, after: Metrics) -> None:
    phases = after.by("prefixgate_client_disconnects_total", "phase")
    assert phases == dict(script.left)
    assert set(phases) == {"body", "queue", "connect", "answer"}
    assert sum(phases.values()) == script.expected["cancelled"]


def test_tokens_add_up(after: Metrics) -> None:
    prompt = after.total("prefixgate_prompt_tokens_total")
    matched = after.total("prefixgate_matched_tokens_total")
    uncached = after.total("prefixgate_uncached_tokens_total")
    # Each request's matched tokens are rounded down to whole ones.
    assert 0 <= matched + uncached - prompt <= after.total("prefixgate_decisions_total")


def test_every_metric_has_moved(script: Script) -> None:
    ours = {name for name in script.families if name.startswith("prefixgate_")}
    assert ours == {family.name.removesuffix("_total") for family in FAMILIES}
    # A replica is behind the others for milliseconds, which a scrape sees only by luck.
    assert ours - script.moved <= {"prefixgate_feed_lag_seconds"}


def test_nothing_is_left(after: Metrics) -> None:
    assert after.total("prefixgate_in_flight") == 0
    assert after.total("prefixgate_queue_depth") == 0
    assert after.total("prefixgate_queue_oldest_wait_seconds") == 0
    assert after.total("prefixgate_index_bookings") == 0


def test_nothing_called_a_hit_counts_a_diversion(script: Script) -> None:
    """`Script.home_is_full` looks at what a spill moves; no name may promise more."""
    assert [name for name in script.families if "hit" in name or "miss" in name] == []


def test_the_run_was_clean(script: Script) -> None:
    assert "Traceback" not in script.gw.log
    assert " ERROR " not in script.gw.log
