"""The example deployment: its parts refer to one another, and its config is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.config import Settings, parse
from gateway.fleet.discovery.slices import LABELS

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "discovery.md").read_text()
PARTS: dict[str, Any] = {
    part["kind"]: part
    for part in yaml.safe_load_all((ROOT / "conf" / "kubernetes" / "prefixgate.yaml").read_text())
}
POD = PARTS["Deployment"]["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]


def settings() -> Settings:
    [text] = PARTS["ConfigMap"]["data"].values()
    return parse(text.encode(), Settings, "example")


def test_the_config_is_one_and_finds_engines() -> None:
    [source] = settings().discovery.kubernetes
    assert source.service == "vllm"
    assert settings().server.host == "0.0.0.0"


def test_the_container_finds_its_config(tmp_path: Path) -> None:
    [(name, text)] = PARTS["ConfigMap"]["data"].items()
    [mount] = CONTAINER["volumeMounts"]
    assert CONTAINER["args"] == ["serve", "--config", f"{mount['mountPath']}/{name}"]
    [volume] = POD["spec"]["volumes"]
    assert (volume["name"], volume["configMap"]["name"]) == (
        mount["name"],
        PARTS["ConfigMap"]["metadata"]["name"],
    )
    (tmp_path / name).write_text(text)
    assert main(["check-config", str(tmp_path / name)]) == 0


def test_the_account_may_list_and_watch_slices_and_nothing_else() -> None:
    account = PARTS["ServiceAccount"]["metadata"]["name"]
    assert POD["spec"]["serviceAccountName"] == account
    [subject] = PARTS["RoleBinding"]["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", account)
    assert PARTS["RoleBinding"]["roleRef"]["name"] == PARTS["Role"]["metadata"]["name"]
    [rule] = PARTS["Role"]["rules"]
    assert rule["apiGroups"] == ["discovery.k8s.io"]
    assert rule["resources"] == ["endpointslices"]
    assert rule["verbs"] == ["list", "watch"]


def test_ports_and_times_fit() -> None:
    [port] = CONTAINER["ports"]
    assert port["containerPort"] == settings().server.port
    assert CONTAINER["readinessProbe"]["httpGet"] == {"path": "/ready", "port": port["name"]}
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < Settings().server.shutdown_delay
    assert POD["spec"]["terminationGracePeriodSeconds"] > settings().server.drain
    labels = POD["metadata"]["labels"]
    assert PARTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert PARTS["Service"]["spec"]["selector"] == labels


BLOCKS = re.findall(r"```yaml\n(.*?)```", DOCS, re.S)


@pytest.mark.parametrize("block", [block for block in BLOCKS if "discovery:" in block])
def test_the_examples_on_the_page_are_settings(block: str) -> None:
    assert parse(block.encode(), Settings, "page").discovery.sources


def test_the_role_on_the_page_is_the_deployments() -> None:
    [role] = [yaml.safe_load(block) for block in BLOCKS if "kind: Role" in block]
    assert role["rules"] == PARTS["Role"]["rules"]


def test_the_labels_on_the_page_are_those_that_are_read() -> None:
    assert dict(re.findall(r"\| `(prefixgate/[\w-]+)` \| `(\w+)`", DOCS)) == LABELS
