from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, Scheduling, changed, load


def test_null_is_a_value_where_it_means_something_and_the_default_elsewhere(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "server:\n"
        "scheduling:\n"
        "  gate: null\n"
        "  target:\n"
        "  prefill:\n"
        "    max_requests:\n"
        "backends:\n"
        "- url: http://gpu1\n"
        "  kind: null\n"
        "  role:\n"
    )
    settings = load(path)
    assert settings.scheduling == Scheduling(gate=None)
    assert [backend.url for backend in settings.backends] == ["http://gpu1"]


def test_a_change_reaches_into_sections_and_leaves_the_rest() -> None:
    before = changed(Scheduling(), {"prefill": {"max_wait": 5.0}, "gate": 1.0})
    after = changed(before, {"prefill": {"max_waiting": 3}, "gate": None})
    assert (after.prefill.max_wait, after.prefill.max_waiting, after.gate) == (5.0, 3, None)
    assert after.decode == Scheduling().decode


def test_what_is_no_setting_cannot_be_changed() -> None:
    with pytest.raises(ConfigError):
        changed(Scheduling(), {"priorities": {"urgent": 1.0}})


def test_shares_of_priorities_leave_something_to_the_highest() -> None:
    with pytest.raises(ConfigError, match=r"priorities: .* at most 1, got 0.9 \+ 0.2"):
        changed(Scheduling(), {"priorities": {"normal": 0.9, "low": 0.2}})


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"gaet": 1}, "gaet", "unknown field `gaet`; known are prefill_seconds, "),
        ({"target": {"secs": 1}}, "target.secs", "target: .*`secs`; known are seconds, factor"),
        ({"order": "fifo"}, "order", "order: .*; one of arrival, deadline, work .got 'fifo'."),
        ({"tenants": {"weights": {"a": -1}}}, "tenants.weights.a", "Expected .* > 0.*got -1"),
        ({"ranges": [{"min_token": 1}]}, "ranges[0].min_token", "known are min_tokens, "),
    ],
)
def test_a_wrong_change_is_answered_with_what_is_allowed(
    changes: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        changed(Scheduling(), changes)
    assert caught.value.field == field
