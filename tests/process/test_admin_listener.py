"""A listener of its own for the admin API."""

from __future__ import annotations

import socket
from pathlib import Path

import yaml

from tests.conftest import StartBackend
from tests.harness.gateway_process import GatewayProcess, free_port
from tests.harness.routes import CHAT, Json
from tests.process.test_refused_settings import run


def test_the_admin_api_is_there_and_nowhere_else(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    backend = start_backend()
    settings = {
        "backends": [{"url": backend.url}],
        "admin": {"listen": listen, "token": "s3cret"},
        "auth": {"enabled": True},
    }
    with GatewayProcess(settings, tmp_path) as gw:
        assert f"the admin API listens on http://{listen}\n" in gw.log
        assert [view["state"] for view in gw.admin("GET", "/backends")] == ["healthy"]
        for page in ("/admin/v1/backends", "/admin", "/admin/openapi.json"):
            answer = gw.http.get(page)
            assert (answer.status_code, "error" in answer.json()) == (404, True)
        # There nothing but it is served: no proxy, and metrics without an API key.
        assert gw.http.get(f"http://{listen}/metrics").status_code == 200
        assert gw.http.get(f"http://{listen}/live").status_code == 200
        body = CHAT.body(["hello"])
        assert gw.http.post(f"http://{listen}{CHAT.path}", json=body).status_code == 404
        unknown = gw.http.get(
            f"http://{listen}/admin/v1/backends", headers={"authorization": "Bearer nobody"}
        )
        assert unknown.status_code == 401
        assert backend.requests == []
    assert gw.stop() == 0


def test_an_address_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "config.yaml"
        settings: Json = {"server": {"port": 0}, "admin": {"listen": f"127.0.0.1:{port}"}}
        settings["backends"] = [{"url": "http://127.0.0.1:1"}]
        config.write_text(yaml.safe_dump(settings))
        result = run("serve", "--config", str(config))
        assert result.returncode == 3
        assert result.stderr == (
            f"prefixgate: cannot listen on 127.0.0.1 port {port}: Address already in use"
            " (admin.listen)\n"
        )
