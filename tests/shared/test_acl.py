"""The Redis user that docs/operations.md proposes can do all that a gateway asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.secrets import hash_key
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import ROOT, GatewayProcess
from tests.harness.redis_server import RedisServer
from tests.harness.routes import CHAT

KEY = "a client's key"
[RULES] = re.findall(
    r"(?m)^ACL SETUSER prefixgate (on .*)$", (ROOT / "docs" / "operations.md").read_text()
)


@pytest.mark.parametrize("lacks", [None, "+@scripting"])
def test_the_proposed_user_is_enough(
    backend: FakeBackend, tmp_path: Path, lacks: str | None
) -> None:
    rules = [rule for rule in RULES.split() if rule != lacks]
    limits = {"requests_per_minute": 100, "max_concurrent": 10}
    key = {"name": "a", "hash": hash_key(KEY), "limits": limits}
    with RedisServer() as redis:
        redis.command("ACL", "SETUSER", "prefixgate", *rules)
        settings = {
            "backends": [{"url": backend.url}],
            "redis": {"url": redis.url, "username": "prefixgate", "password": "PASSWORD"},
            "replication": {"snapshot_interval": 0.5},
            "auth": {"enabled": True, "open_metrics": True, "keys": [key]},
        }
        with GatewayProcess(settings, tmp_path) as gw:
            body, headers = CHAT.body(["hello" * 200]), {"authorization": f"Bearer {KEY}"}
            assert gw.http.post(CHAT.path, json=body, headers=headers).status_code == 200
            changed = gw.http.patch("/admin/v1/scheduling", json={"gate": 1.0})
            assert changed.headers["x-prefixgate-shared"] == ("true" if lacks is None else "false")
            if lacks is None:
                gw.settles(
                    lambda metrics: metrics.total("prefixgate_snapshots_total", event="written") > 0
                )
                assert gw.metrics().total("prefixgate_limits_local") == 0
        assert (redis.command("ACL", "LOG") == b"*0\r\n") is (lacks is None)
