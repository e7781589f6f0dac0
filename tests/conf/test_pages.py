"""The settings on the documentation's pages are settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.config import ConnectorName, Disagg, Settings, convert
from gateway.fleet.allow import AllowRule

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SECURITY = re.findall(r"```yaml\n(.*?)```", (DOCS / "security.md").read_text(), re.DOTALL)
DISAGG = re.findall(r"```yaml\n(.*?)```", (DOCS / "disaggregation.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", SECURITY)
def test_what_the_page_on_security_shows_can_be_set(text: str) -> None:
    settings = convert(yaml.safe_load(text), Settings, "docs/security.md")
    AllowRule(settings.admin.allow_backends)


@pytest.mark.parametrize("text", DISAGG)
def test_what_the_page_on_handovers_shows_can_be_set(text: str) -> None:
    convert(yaml.safe_load(text), Settings, "docs/disaggregation.md")


def test_the_page_on_handovers_has_every_option() -> None:
    page = (DOCS / "disaggregation.md").read_text()
    shown = re.findall(r"^\| `disagg\.(\w+)`", page, re.MULTILINE)
    assert shown == list(Disagg.__struct_fields__)
    assert re.findall(r"^### `(\w+)`", page, re.MULTILINE) == list(ConnectorName)


def test_the_codes_that_the_page_on_routes_tells_are_given() -> None:
    _, _, page = (DOCS / "api.md").read_text().partition("## Errors")
    rows = re.findall(r"^\| [45]\d\d \| (.*?) \|", page, re.MULTILINE)
    codes = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    assert len(codes) > 10
    assert {code for code in codes if f'"{code}"' not in source} == set()


def test_the_page_has_examples() -> None:
    assert len(SECURITY) == 3
    assert len(DISAGG) == 3
