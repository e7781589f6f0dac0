"""The config file of a running gateway, edited."""

from __future__ import annotations

import os
from copy import deepcopy
from typing import Any

import yaml

from tests.harness.gateway_process import GatewayProcess, Metrics
from tests.harness.routes import Json


class ConfigFile:
    """Args:
    gw: the gateway that was started from it.

    Attributes:
        tree: what the file says, as long as it is written through this.
    """

    def __init__(self, gw: GatewayProcess) -> None:
        self.path = gw.config_path
        self.tree: Json = yaml.safe_load(self.path.read_text())
        self._gw = gw

    def set(self, option: str, value: Any) -> None:
        """Change one option, by its dotted name, in the tree and in the file."""
        *sections, name = option.split(".")
        tree = self.tree
        for section in sections:
            tree = tree.setdefault(section, {})
        tree[name] = deepcopy(value)
        self.write(yaml.safe_dump(self.tree))

    def write(self, text: str) -> None:
        """Put other text in its place, in one step."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.path)

    def restore(self) -> None:
        self.write(yaml.safe_dump(self.tree))

    def reload(self) -> Json:
        answer: Json = self._gw.admin("POST", "/config/reload")
        return answer

    def refused(self) -> str:
        """Reload what must not be accepted.

        Returns:
            The message.
        """
        answer = self._gw.http.post("/admin/v1/config/reload")
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["message"])


def reloads(metrics: Metrics) -> dict[str, int]:
    """Attempts so far, by result."""
    counts = metrics.by("prefixgate_config_reloads_total", "result")
    return {result: int(count) for result, count in counts.items()}
