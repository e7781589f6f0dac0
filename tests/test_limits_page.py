"""The page of limits has every one of them, as it is."""

from __future__ import annotations

import re

import msgspec

from gateway.config import Server
from tests.harness.gateway_process import ROOT

NO_LIMITS = {
    *("host", "port", "tls", "parser", "response_headers", "stream_ping", "watch"),
    *("trusted_proxies", "deny_paths", "pass_transfer_fields", "shutdown_delay", "drain"),
}


def test_every_limit_of_the_server_is_on_the_page_with_its_default() -> None:
    page = (ROOT / "docs" / "limits.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| `server\.(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    defaults = msgspec.to_builtins(Server())
    assert {name for name, _ in rows} >= set(defaults) - NO_LIMITS
    for name, shown in rows:
        default = defaults[name]
        if default is not None:
            assert shown.startswith(f"{default:g}" if isinstance(default, float) else str(default))
