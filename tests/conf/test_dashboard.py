from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.telemetry.families import FAMILIES
from tests.conf.known import labels_left, problems, series
from tests.conf.promql import read

CONF = Path(__file__).resolve().parents[2] / "conf"
GRAFANA = CONF / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "prefixgate.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES: dict[str, dict[str, Any]] = {
    variable["name"]: variable for variable in DASHBOARD["templating"]["list"]
}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def provisioned(name: str) -> Any:
    [path] = (GRAFANA / "provisioning" / name).iterdir()
    return yaml.safe_load(path.read_text())


def expressions() -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of everything that is asked of Prometheus."""
    for panel in DRAWN:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]
    for annotation in DASHBOARD["annotations"]["list"]:
        legend = f"{annotation['titleFormat']} {annotation['textFormat']}"
        yield annotation["name"], annotation["expr"], legend


ALL = list(expressions())
each_expression = pytest.mark.parametrize(
    ("expression", "legend"), [entry[1:] for entry in ALL], ids=[entry[0] for entry in ALL]
)


@each_expression
def test_every_metric_and_label_exists(expression: str, legend: str) -> None:
    assert problems(expression) == []
    assert set(re.findall(r"{{\s*(\w+)\s*}}", legend)) <= labels_left(expression)


@each_expression
def test_every_variable_exists(expression: str, legend: str) -> None:
    used = set(re.findall(r"\$\{?(\w+)", expression)) - {"__rate_interval"}
    assert used <= VARIABLES.keys()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for _, expression, _ in ALL for name, _ in read(expression).metrics}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert {family.name for family in FAMILIES} <= shown


def test_variables_ask_for_labels_that_exist() -> None:
    assert list(VARIABLES) == ["datasource", "model", "backend"]
    for name in ("model", "backend"):
        query = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES[name]["query"]["query"])
        assert query is not None
        assert query[2] in series()[query[1]]
        assert VARIABLES[name]["datasource"] == DATASOURCE
        assert any(f"${name}" in expression for _, expression, _ in ALL)


def test_the_promised_panels_are_there() -> None:
    text = {title.rsplit(" ", 1)[0]: "" for title, _, _ in ALL}
    for title, expression, _ in ALL:
        text[title.rsplit(" ", 1)[0]] += expression + "\n"
    for quantile in ("0.5", "0.95", "0.99"):
        assert f"histogram_quantile({quantile}" in text["Time to first token"]
        assert f"histogram_quantile({quantile}" in text["Time per output token"]
    ratio = text["P99 TTFT / P99 TPOT"].splitlines()[0]
    upper, lower = ratio.split(" / ")
    assert "0.99" in upper
    assert "0.99" in lower
    assert "ttft" in upper
    assert "tpot" in lower


def test_panels_use_the_datasource_variable() -> None:
    for panel in DRAWN:
        assert panel["datasource"] == DATASOURCE
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


def test_panels_say_what_they_show_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert all(panel["description"] for panel in DRAWN)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_datasource_is_provisioned_under_the_uid_that_is_chosen() -> None:
    [datasource] = provisioned("datasources")["datasources"]
    chosen = VARIABLES["datasource"]
    assert (chosen["type"], chosen["query"]) == ("datasource", datasource["type"])
    assert chosen["current"] == {"text": datasource["name"], "value": datasource["uid"]}


def test_the_dashboard_is_provisioned_from_the_mounted_folder() -> None:
    [provider] = provisioned("dashboards")["providers"]
    assert provider["type"] == "file"
    compose = yaml.safe_load((CONF.parent / "docker-compose.yml").read_text())
    grafana = compose["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./conf/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./conf/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == provider["options"]["path"] + "/prefixgate.json"


def test_it_is_a_dashboard_that_grafana_can_take() -> None:
    assert DASHBOARD["schemaVersion"] == 42
    assert DASHBOARD["uid"] == "prefixgate"
    assert "id" not in DASHBOARD
    assert {panel["type"] for panel in PANELS} <= {
        "row",
        "stat",
        "timeseries",
        "heatmap",
        "state-timeline",
    }
