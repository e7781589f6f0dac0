"""The commands of docker-compose.yml, run on this machine: names become loopback ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from loadtests.redis.server import RedisServer
from tests.conf.compose import ENGINES, ROOT, SERVICES, mounts
from tests.harness.gateway_process import free_port

START_SECONDS = 40.0
PORTS = {"gateway": 8080} | dict.fromkeys(ENGINES, 8000)
DOCKERFILE = (ROOT / "Dockerfile").read_text()


class Stack:
    """All services that are ours, as processes."""

    def __init__(self, logs: Path) -> None:
        self._ports = {name: free_port() for name in PORTS}
        self._logs = logs
        self._exit = ExitStack()

    def __enter__(self) -> Stack:
        with self._exit:
            self._redis = self._exit.enter_context(RedisServer())
            for name in (*ENGINES, "gateway"):
                self._start(name)
            for name in PORTS:
                self._wait(name)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def _start(self, name: str) -> None:
        command = [self.native(name, word) for word in SERVICES[name]["command"]]
        log = self._exit.enter_context((self._logs / name).open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", *command],
            cwd=ROOT,
            env=os.environ | self._environment(name),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._exit.callback(_end, process)

    def _environment(self, name: str) -> dict[str, str]:
        said: dict[str, str] = SERVICES[name].get("environment", {})
        return {variable: self.native(name, value) for variable, value in said.items()}

    def native(self, name: str, word: str) -> str:
        """A word of a service's command as it is outside of its container."""
        for target, path in mounts(name).items():
            word = word.replace(target, str(path))
        for other, port in PORTS.items():
            word = word.replace(f"{other}:{port}", f"127.0.0.1:{self._ports[other]}")
        word = word.replace("redis://redis:6379", self._redis.url)
        word = word.replace(f"127.0.0.1:{PORTS[name]}", f"127.0.0.1:{self._ports[name]}")
        if word == str(PORTS[name]):
            word = str(self._ports[name])
        return "127.0.0.1" if word == "0.0.0.0" else word

    def url(self, target: str) -> str:
        """Where `service:port` is."""
        name, _, port = target.partition(":")
        assert int(port) == PORTS[name]
        return f"http://127.0.0.1:{self._ports[name]}"

    def healthy(self, name: str) -> bool:
        """Run the service's own health check."""
        if "healthcheck" in SERVICES[name]:
            kind, *check = SERVICES[name]["healthcheck"]["test"]
        else:
            kind, *check = yaml.safe_load(re.findall(r"(?m)^ +CMD (\[.*\])$", DOCKERFILE)[0])
            kind, check = "CMD", [kind, *check]
        assert kind == "CMD"
        assert check[0] == "python"
        words = [self.native(name, word) for word in check[1:]]
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False)
        return done.returncode == 0

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy(name):
            assert time.monotonic() < deadline, f"{name}: {(self._logs / name).read_text()}"
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("services")) as stack:
        yield stack


def is_whole(ready: Any) -> bool:
    """Whether a worker knows all engines and the other worker."""
    shared = ready["shared"]
    engines = ready["backends"].get("healthy")
    return (engines, shared["redis"], shared["replicas"]) == (len(ENGINES), "ok", 2)


def test_requests_go_through_the_gateway_to_the_engines(stack: Stack) -> None:
    with httpx.Client(base_url=stack.url("gateway:8080"), timeout=30, trust_env=False) as gateway:
        deadline = time.monotonic() + START_SECONDS
        while not is_whole(ready := gateway.get("/ready").json()):
            assert time.monotonic() < deadline, ready
            time.sleep(0.1)
        [model] = ready["models"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "max_tokens": 3,
        }
        answer = gateway.post("/v1/chat/completions", json=body).raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] == 3


def test_prometheus_finds_metrics_at_every_target(stack: Stack) -> None:
    scrape = yaml.safe_load((ROOT / "conf/prometheus/prometheus.yml").read_text())
    prefixes = {"prefixgate": "prefixgate_", "engines": "vllm:"}
    jobs = {job["job_name"]: job for job in scrape["scrape_configs"]}
    for job, prefix in prefixes.items():
        [group] = jobs[job]["static_configs"]
        for target in group["targets"]:
            url = f"{stack.url(target)}/metrics"
            text = httpx.get(url, trust_env=False).raise_for_status().text
            names = [family.name for family in text_string_to_metric_families(text)]
            assert any(name.startswith(prefix) for name in names), target
