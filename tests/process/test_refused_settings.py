"""Settings that cannot work stop the start: exit code 2, one line that names them, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.gateway_process import ROOT

BACKEND = {"url": "http://127.0.0.1:1"}
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "unknown section": ({"sever": {}}, ("sever",)),
    "unknown key": ({"server": {"prot": 1}}, ("server", "prot")),
    "unknown key of a class": (
        {"scheduling": {"prefill": {"max_wiat": 1}}},
        ("scheduling.prefill", "max_wiat"),
    ),
    "unknown key of a backend": ({"backends": [BACKEND | {"wight": 1}]}, ("backends", "wight")),
    "port too high": ({"server": {"port": 65_536}}, ("server.port", "65536")),
    "port as text": ({"server": {"port": "http"}}, ("server.port", "'http'")),
    "less room for all bodies than for one": (
        {"server": {"max_body_total": 1024}},
        ("max_body_total", "67108864", "1024"),
    ),
    "negative duration": ({"timeouts": {"connect": -1}}, ("timeouts.connect", "-1")),
    "no policy of that name": ({"policy": {"name": "magic"}}, ("policy", "'magic'")),
    "unknown policy parameter": ({"policy": {"params": {"alpha": 1}}}, ("policy", "alpha")),
    "policy parameter out of bounds": (
        {"policy": {"params": {"omega": -1.0}}},
        ("policy", "omega", "-1.0"),
    ),
    "parameter of another policy": (
        {"policy": {"name": "round_robin", "params": {"omega": 1.0}}},
        ("policy round_robin", "omega"),
    ),
    "no scheme": ({"backends": [{"url": "gpu1:8000"}]}, ("backend url", "'gpu1:8000'")),
    "bad port in a URL": ({"backends": [{"url": "http://gpu1:99999"}]}, ("http://gpu1:99999",)),
    "no URL": ({"backends": [{"models": ["m"]}]}, ("backends", "url")),
    "no name for a Sentinel's password": (
        {"redis": {"url": "redis://r", "sentinel_password": "p"}},
        ("redis", "sentinel_service"),
    ),
    "a user without a password": (
        {"redis": {"url": "redis://r", "username": "u"}},
        ("redis", "password"),
    ),
    "keys that cannot be named so": (
        {"redis": {"namespace": "{a}"}},
        ("redis.namespace", "'{a}'"),
    ),
    "empty model list": ({"backends": [BACKEND | {"models": []}]}, ("models",)),
    "unknown key of a source": (
        {"discovery": {"file": [{"path": "x", "intervall": 1}]}},
        ("discovery.file[0]", "intervall"),
    ),
    "no port of a name": ({"discovery": {"dns": [{"host": "x"}]}}, ("discovery.dns[0]", "port")),
    "name that is none": (
        {"discovery": {"dns": [{"host": "a..b", "port": 1}]}},
        ("discovery.dns", "'a..b'"),
    ),
    "neither service nor selector": (
        {"discovery": {"kubernetes": [{}]}},
        ("discovery.kubernetes[0]", "service or selector"),
    ),
    "no model in a template": (
        {"discovery": {"kubernetes": [{"service": "x", "backend": {"models": []}}]}},
        ("discovery: kubernetes:x", "models"),
    ),
    "alias for nothing": ({"models": {"big": ["m"], "small": []}}, ("models.small", "length >= 1")),
    "unknown timeout of a model": (
        {"timeouts": {"models": {"m": {"idle": 1}, "n": {"idel": 1}}}},
        ("timeouts.models.n", "idel"),
    ),
    "weight of a tenant": (
        {"scheduling": {"tenants": {"weights": {"a": 1, "b": 0}}}},
        ("scheduling.tenants.weights.b", "got 0"),
    ),
    "unknown role": ({"backends": [BACKEND | {"role": "boss"}]}, ("role", "'boss'")),
    "unknown log level": ({"log": {"level": "loud"}}, ("log.level", "'loud'")),
    "unwritable access log": ({"log": {"access": "/proc/none/x"}}, ("log.access", "/proc/none/x")),
    "access log is a directory": ({"log": {"access": "/"}}, ("log.access", "/")),
    "not a mapping": (["server"], ("array",)),
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def refuses(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert result.stderr.startswith(("prefixgate: ", "usage: "))


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_wrong_settings_stop_the_start(tmp_path: Path, command: str, name: str) -> None:
    tree, words = WRONG[name]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    given = ["serve", "--config", str(config)] if command == "serve" else [command, str(config)]
    result = run(*given)
    refuses(result, *words)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [("serve", "--config"), ("check-config",)])
def test_a_file_that_cannot_be_read(tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "missing.yaml"
    refuses(run(*command, str(missing)), str(missing), "No such file")
    broken = tmp_path / "broken.yaml"
    broken.write_text("server: [")
    refuses(run(*command, str(broken)), str(broken), "not valid YAML")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "magic"], ("policy", "'magic'")),
        (["--backend", "gpu1"], ("'gpu1'", "http://")),
        (["--port", "70000"], ("port", "70000")),
        (["--port", "x"], ("--port", "'x'")),
        (["--log-level", "loud"], ("--log-level", "'loud'")),
        (["--access-log", "/proc/none/x"], ("/proc/none/x",)),
        (["--nonsense"], ("--nonsense",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_arguments_stop_the_start(arguments: list[str], words: tuple[str, ...]) -> None:
    refuses(run("serve", *arguments), *words)


def test_a_secret_is_not_repeated(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"admin": {"token": 123_456_789}}))
    result = run("check-config", str(config))
    refuses(result, "admin.token")
    assert "123456789" not in result.stderr


def test_the_documented_settings_are_right() -> None:
    result = run("check-config", "conf/prefixgate.yaml")
    assert (result.returncode, result.stdout) == (0, "conf/prefixgate.yaml: ok\n")
