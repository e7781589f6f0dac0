from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conf.known import labels_left, problems

CONF = Path(__file__).resolve().parents[2] / "conf" / "prometheus"
SCRAPE: dict[str, Any] = yaml.safe_load((CONF / "prometheus.yml").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


@each_rule
def test_every_metric_and_label_exists(rule: dict[str, Any]) -> None:
    assert problems(rule["expr"]) == []


@each_rule
def test_annotations_speak_of_labels_that_are_left(rule: dict[str, Any]) -> None:
    text = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels_left(rule["expr"])


@each_rule
def test_alerts_are_complete(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]


def test_alerts_have_different_names() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 0


def test_the_rule_file_is_the_one_that_is_loaded() -> None:
    assert [CONF / name for name in SCRAPE["rule_files"]] == [CONF / "alerts.yml"]


def test_the_gateway_is_scraped_under_the_job_that_is_asked_for() -> None:
    jobs = {job["job_name"]: job for job in SCRAPE["scrape_configs"]}
    [target] = jobs["prefixgate"]["static_configs"]
    assert target["targets"] == ["gateway:8080"]
    # /metrics is what Prometheus asks for by itself
    assert "metrics_path" not in jobs["prefixgate"]
