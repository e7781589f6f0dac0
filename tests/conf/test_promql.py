"""The reader that the dashboard is checked with finds what is wrong."""

from __future__ import annotations

import pytest

from tests.conf.known import labels_left, problems
from tests.conf.promql import read


def test_metrics_filters_and_groups_are_seen() -> None:
    usage = read(
        'histogram_quantile(0.99, sum by (class, le) (rate(a_bucket{model=~"x y", z!="("}[5m])))'
        " / b unless c offset 1m > 1e3"
    )
    assert usage.metrics == [("a_bucket", {"model", "z"}), ("b", set()), ("c", set())]
    assert usage.grouped == [({"class", "le"}, {"a_bucket"})]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("prefixgate_request_total", "no metric prefixgate_request_total"),
        ("prefixgate_ttft_seconds", "no metric prefixgate_ttft_seconds"),
        ('prefixgate_backend_up{class="x"}', "prefixgate_backend_up has no label class"),
        (
            "sum by (model) (rate(prefixgate_decisions_total[1m]))",
            "prefixgate_decisions_total cannot be grouped by model",
        ),
        (
            "sum by (le) (rate(prefixgate_ttft_seconds_sum[1m]))",
            "prefixgate_ttft_seconds_sum cannot be grouped by le",
        ),
        ("1 + 1", "uses no metric"),
    ],
)
def test_problems_are_found(expression: str, problem: str) -> None:
    assert problems(expression) == [problem]


def test_what_is_right_has_no_problem() -> None:
    assert problems('sum by (class) (prefixgate_in_flight{backend=~"$backend"}) > 0') == []
    assert labels_left("sum by (class) (prefixgate_in_flight)") == {"class"}
    assert "backend" in labels_left("prefixgate_backend_up == 0")


@pytest.mark.parametrize("expression", ["sum(a) by (b)", "a / on (b) c", "a{", "a ? b"])
def test_what_the_reader_does_not_know_is_an_error(expression: str) -> None:
    with pytest.raises(ValueError, match="not"):
        read(expression)
