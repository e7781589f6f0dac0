"""What docs/operations.md says a Redis user must be allowed to do: all that is needed, no more."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

from gateway.secrets import hash_key
from loadtests.redis.server import RedisServer
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import KEY, ROOT, GatewayProcess

USER = re.compile(r"^ACL SETUSER prefixgate .*?^```", re.M | re.S)
OURS = "{prefixgate:rights}:"
LIMITED = {"name": "tests", "hash": hash_key(KEY), "limits": {"max_concurrent": 50}}


def called(redis: RedisServer) -> set[str]:
    """Commands that were sent since the last CONFIG RESETSTAT, those of scripts too."""
    stats = redis.command("INFO", "commandstats") or b""
    return {name.decode() for name in re.findall(rb"cmdstat_(\w+)", stats)}


def test_the_documented_rights_are_those_that_are_needed(tmp_path: Path) -> None:
    found = USER.search((ROOT / "docs/operations.md").read_text())
    assert found is not None
    words = found[0].removesuffix("```").replace("NAMESPACE", "rights").split()
    needed = {word[1:] for word in words if word.startswith("+")}
    with RedisServer() as redis, FakeBackend("m") as backend:
        assert redis.command(*words) == b"+OK\r\n"
        settings = {
            "backends": [{"url": backend.url}],
            "redis": {
                "url": redis.url,
                "namespace": "rights",
                "username": "prefixgate",
                "password": "PASSWORD",
            },
            "replication": {"lease": 0.3, "snapshot_interval": 0.2},
            "stored": {"max_ids": 2},
            "auth": {"enabled": True, "keys": [LIMITED]},
        }
        redis.command("CONFIG", "RESETSTAT")
        with GatewayProcess(settings, tmp_path) as one, GatewayProcess(settings, tmp_path) as other:
            key = {"x-api-key": KEY}
            drain = f"/backends/{one.backend_id(backend.url)}"
            deadline = time.monotonic() + 30
            number = 0
            while not needed <= called(redis) and time.monotonic() < deadline:
                for _ in range(20):
                    number += 1
                    backend.default = replace(backend.default, response_id=f"resp_{number}")
                    body = {"model": "m", "input": f"{number} {'x' * 600}"}
                    assert one.post("/v1/responses", body, **key).status_code == 200
                body["previous_response_id"] = f"resp_{number}"
                assert other.post("/v1/responses", body, **key).status_code == 200
                other.admin("POST", f"{drain}/drain")
                other.admin("POST", f"{drain}/undrain")
                until_healthy(one, drain)
        assert needed - called(redis) == set()
        assert redis.command("ACL", "LOG") == b"*0\r\n"
        for gateway in (one, other):
            assert "NOPERM" not in gateway.log


def until_healthy(gateway: GatewayProcess, path: str) -> None:
    deadline = time.monotonic() + 10
    while gateway.admin("GET", path)["state"] != "healthy":
        assert time.monotonic() < deadline
        time.sleep(0.02)
