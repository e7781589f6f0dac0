"""Starting: what stops it, how that is told, and what a start is content with."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.harness.gateway_process import ROOT, START_SECONDS, free_port

COMMAND = [sys.executable, "-m", "gateway.cli"]


class Started:
    """A gateway that is started from the command line alone."""

    def __init__(self, log: Path, *arguments: str, descriptors: int | None = None) -> None:
        self._log = log
        command = [*COMMAND, "serve", *arguments]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def says(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(pattern, self.log)) is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)
        return found

    def listens(self) -> str:
        return self.says(r"listening on (http://\S+),")[1]

    def interrupted(self, number: int) -> int:
        """Its exit code after two signals, the second of which does not let it wait."""
        self.process.send_signal(number)
        self.says("stopping: not ready")
        self.process.send_signal(number)
        return self.process.wait(10)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def run(*arguments: str, descriptors: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )


# the address


def test_a_port_in_use_has_an_exit_code_of_its_own(taken: int, tmp_path: Path) -> None:
    access = tmp_path / "access.jsonl"
    backend = ("--backend", "http://127.0.0.1:1")
    result = run("serve", "--port", str(taken), *backend, "--access-log", str(access))
    assert result.returncode == 3
    assert result.stderr == (
        f"prefixgate: cannot listen on 127.0.0.1 port {taken}: Address already in use "
        "(server.host, server.port)\n"
    )
    assert not access.exists()


@pytest.mark.parametrize("host", ["256.1.1.1", "no-such-host.invalid", "192.0.2.1"])
def test_so_has_an_address_that_is_not_ours(host: str) -> None:
    result = run("serve", "--host", host, "--port", "0")
    assert result.returncode == 3
    assert result.stderr.startswith(f"prefixgate: cannot listen on {host} port 0: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::"])
def test_it_listens_on_every_address_of_its_host(host: str, tmp_path: Path) -> None:
    with Started(tmp_path / "log", "--host", host, "--port", "0") as started:
        url = started.listens().replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
        assert httpx.get(f"{url}/live", trust_env=False).status_code == 200
        assert started.interrupted(signal.SIGINT) == 130


def test_a_port_can_be_taken_again_at_once(tmp_path: Path) -> None:
    port = free_port()
    for _ in range(2):
        with Started(tmp_path / "log", "--port", str(port)) as started:
            url = started.listens()
            with httpx.Client(trust_env=False) as client:
                client.get(f"{url}/live")
                assert started.interrupted(signal.SIGTERM) == 143


# what is missing


def test_no_backends_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    with Started(tmp_path / "log", "--port", "0") as started:
        started.listens()
        [line] = [line for line in started.log.splitlines() if " WARNING " in line]
        assert "no backends" in line
        assert "--backend URL" in line


def test_auth_without_keys_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"server": {"port": 0}, "auth": {"enabled": True}}))
    with Started(tmp_path / "log", "--config", str(config)) as started:
        started.listens()
        assert started.says(r"WARNING.* auth.enabled without auth.keys: .*hash-key")


def test_descriptors_that_do_not_do_are_told_in_numbers(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--backend", "http://127.0.0.1:1")
    with Started(tmp_path / "log", *arguments, descriptors=500) as started:
        line = started.says(r"WARNING.*may have 500 descriptors open, enough for (\d+) requests")
        assert int(line[1]) == 218
        started.says(r"so many that 1984 are needed")
    result = run("serve", *arguments, descriptors=60)
    assert result.returncode == 2
    assert "may have 60 descriptors open, and needs 66 at least" in result.stderr
    assert "LimitNOFILE" in result.stderr


def test_a_hangup_without_a_file_or_logs_does_nothing(tmp_path: Path) -> None:
    with Started(tmp_path / "log", "--port", "0") as started:
        url = started.listens()
        started.process.send_signal(signal.SIGHUP)
        for _ in range(5):
            assert httpx.get(f"{url}/live", trust_env=False).status_code == 200
        assert started.process.poll() is None
        assert " ERROR " not in started.log


# check-config


def test_checking_a_config_leaves_nothing_behind(tmp_path: Path, taken: int) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                # In use, which is no fault of the config.
                "server": {"port": taken},
                "log": {"access": str(folder / "a"), "decisions": str(folder / "d")},
                "backends": [{"url": "http://no-such-host.invalid"}],
            }
        )
    )
    result = run("check-config", str(config))
    assert (result.returncode, result.stdout) == (0, f"{config}: ok\n"), result.stderr
    assert list(folder.iterdir()) == []
