"""Group 14: configuration.

F02, that every option has an effect, is in tests/process: test_options.py says so of a start,
test_reload.py of a reload.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import ROOT, GatewayProcess
from tests.harness.routes import CHAT, EMBEDDINGS
from tests.process.config_file import ConfigFile, reloads

SUCCESS = "prefixgate_config_last_success_timestamp_seconds"

# F01

WRONG: dict[str, tuple[str, str]] = {
    "invalid YAML": ("server: [", "not valid YAML"),
    "unknown key": ("sever: {}\n", "unknown field `sever`"),
    "a key twice": ("retries: {budget: 0.1}\nretries: {}\n", "retries: is there twice"),
    "missing field": ("backends:\n- models: [m]\n", "missing required field `url`"),
    "empty backend list": ("backends: []\n", "backends: is empty, and 1 were there"),
    "no backend list": ("retries: {budget: 0.1}\n", "backends: is empty, and 1 were there"),
    "empty file": ("", "is empty"),
    "value out of bounds": ("retries: {budget: 2}\n", "retries.budget"),
    "unknown policy": ("policy: {name: magic}\n", "'magic'"),
    "unknown parameter": ("policy: {params: {alpha: 1}}\n", "alpha"),
    "no URL": ("backends: [{url: 'gpu1:8000'}]\n", "'gpu1:8000'"),
    "log that cannot be written": ("log: {access: /proc/none/x}\n", "/proc/none/x"),
    "empty token": ("admin: {token: ' '}\n", "admin.token: the secret is missing or empty"),
}


@pytest.mark.parametrize("what", WRONG)
def test_F01_a_config_that_cannot_be_applied_changes_nothing(
    what: str, shared_gw: GatewayProcess
) -> None:
    gw = shared_gw
    file = ConfigFile(gw)
    before, settings = gw.metrics(), gw.admin("GET", "/config")
    backends = gw.admin("GET", "/backends")
    broken, says = WRONG[what]
    with gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        client.events(1)
        file.write(broken)
        try:
            message = file.refused()
        finally:
            file.restore()
        answer = client.answer()
    assert says in message
    assert answer.stream.done
    # Loud: to whoever asked, in the log, and in the metrics.
    assert f"config not reloaded, everything stays as it was: {message}" in gw.log
    after = gw.metrics()
    assert reloads(after).get("refused", 0) == reloads(before).get("refused", 0) + 1
    assert after.total("prefixgate_config_last_reload_successful") == 0
    assert after.total(SUCCESS) == before.total(SUCCESS)
    assert gw.admin("GET", "/config") == settings
    assert [each["id"] for each in gw.admin("GET", "/backends")] == [
        each["id"] for each in backends
    ]
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    assert file.reload() == {"changed": [], "needs_restart": []}
    assert gw.metrics().total("prefixgate_config_last_reload_successful") == 1


def test_F01_a_valid_config_is_applied_without_dropping_streams(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend, other = start_backend(), start_backend()
    gw = gateway([backend])
    file = ConfigFile(gw)
    backend.behave(itl=0.05, n_tokens=20)
    with gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        client.events(1)
        before = gw.metrics().total(SUCCESS)
        # Even the backend that serves the stream goes; the stream stays.
        file.set("backends", [{"url": other.url}])
        assert file.reload() == {"changed": ["backends"], "needs_restart": []}
        answer = client.answer()
    assert answer.stream.done
    assert len(answer.stream.text.split()) == 20
    metrics = gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1)
    assert reloads(metrics) == {"applied": 1}
    assert metrics.total(SUCCESS) > before
    assert [each["url"] for each in gw.admin("GET", "/backends")] == [other.url]
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    assert len(other.requests) == 1


@pytest.fixture(scope="module")
def shared_gw(module_gateway: StartGateway) -> Iterator[GatewayProcess]:
    with FakeBackend() as backend:
        backend.behave(itl=0.02, n_tokens=10)
        yield module_gateway([backend])


# F04

MALFORMED: dict[str, tuple[Any, str]] = {
    "URL": ({"backends": [{"url": "http//gpu1"}]}, "backend url 'http//gpu1'"),
    "URL with a password": ({"backends": [{"url": "http://u:pw@gpu1"}]}, "backend url '***@gpu1'"),
    "duration as text": ({"timeouts": {"idle": "1 minute"}}, "timeouts.idle"),
    "duration that is no number": ({"timeouts": {"idle": float("nan")}}, "timeouts.idle"),
    "endless duration": ({"server": {"drain": float("inf")}}, "server.drain"),
    "negative duration": ({"server": {"shutdown_delay": -1}}, "server.shutdown_delay"),
    "share": ({"retries": {"budget": "20%"}}, "retries.budget"),
    "size": ({"server": {"max_body": "64MB"}}, "server.max_body"),
    "header name": ({"scheduling": {"tenants": {"header": "x team"}}}, "scheduling.tenants.header"),
    "empty header name": ({"scheduling": {"tenants": {"header": ""}}}, "scheduling.tenants.header"),
    "model name": ({"backends": [{"url": "http://a", "models": ["a\n"]}]}, "models"),
    "log path": ({"log": {"decisions": "/"}}, "log.decisions"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_F04_a_malformed_value_stops_the_start_and_is_named(tmp_path: Path, what: str) -> None:
    tree, named = MALFORMED[what]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    result = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", "--config", str(path), "--port", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert named in line
    assert "pw" not in line


# F05

UNREADABLE: dict[str, tuple[str, bytes, str]] = {
    "binary": ("/v1/audio/speech", bytes(range(256)) * 40, "application/octet-stream"),
    "multipart": (
        "/v1/audio/transcriptions",
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
        "multipart/form-data; boundary=b",
    ),
    "unknown schema": (
        "/v1/other",
        b'{"model": "m", "what": {"ever": 1}}',
        "application/json",
    ),
    "known path, unknown schema": (CHAT.path, b'{"model": "m", "words": [1]}', "application/json"),
    "messages that are none": (CHAT.path, b'{"model": "m", "messages": 7}', "application/json"),
    "odd parts": (
        CHAT.path,
        b'{"model": "m", "messages": [null, 5, {"role": {}, "content": [7, {"type": []}]}]}',
        "application/json",
    ),
    "odd input": (EMBEDDINGS.path, b'{"model": "m", "input": {"a": 1}}', "application/json"),
}


@pytest.mark.parametrize("policy", ["prefix_affinity", "consistent_hash", "session"])
def test_F05_what_a_policy_cannot_read_is_balanced_by_load(
    start_backend: StartBackend, gateway: StartGateway, policy: str
) -> None:
    backends = [start_backend(), start_backend()]
    gw = gateway(backends, policy={"name": policy})
    for path, _, _ in UNREADABLE.values():
        for backend in backends:
            if path not in (CHAT.path, EMBEDDINGS.path):
                backend.pages[path] = b"{}"
    for what, (path, body, kind) in UNREADABLE.items():
        for _ in range(4):
            answer = gw.http.post(path, content=body, headers={"content-type": kind}, timeout=5.0)
            assert answer.status_code == 200, what
    counts = [len(backend.requests) for backend in backends]
    assert sum(counts) == 4 * len(UNREADABLE)
    assert min(counts) > 0
    unkeyed = gw.metrics().total("prefixgate_unkeyed_requests_total")
    assert unkeyed == sum(counts)


def test_F05_what_is_too_large_to_be_read_is_refused_at_once(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    gw = gateway([start_backend()], server={"max_body": 2000})
    for path, kind in ((CHAT.path, "application/json"), ("/v1/other", "application/octet-stream")):
        answer = gw.http.post(path, content=b"x" * 3000, headers={"content-type": kind})
        assert answer.status_code == 413
