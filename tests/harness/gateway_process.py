"""The real gateway, as a process of its own, started from a config file."""

from __future__ import annotations

import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.secrets import hash_key
from loadtests.process import share
from tests.harness.raw import RawClient

ROOT = Path(__file__).resolve().parents[2]
KEY = "pg-the-key-that-the-harness-shows"
AUTH = {"enabled": True, "keys": [{"name": "tests", "hash": hash_key(KEY)}]}
"""As a gateway's `auth`: whatever the harness sends then shows the key."""
START_SECONDS = 20.0
STOP_SECONDS = 10.0
PORTS = range(10_000, 20_000)


def free_port(host: str = "127.0.0.1") -> int:
    """One that nothing listens on now, and that the system gives to nobody by itself: from below
    the ports of outgoing connections, and for test processes side by side from a share of each."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place, shares = share()
    while True:
        port = random.randrange(PORTS.start + place, PORTS.stop, shares)
        with socket.socket(family) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port


class Metrics:
    """One reading of /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name which carry at least these labels; 0 without any."""
        wanted = labels.items()
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and wanted <= sample.labels.items()
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples of that name, summed by one label's values; zeros left out."""
        sums: dict[str, float] = {}
        for sample in self._samples:
            if sample.name == name and sample.value:
                key = sample.labels.get(label, "")
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """By name and labels."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for sample in self._samples
        }

    @property
    def series(self) -> int:
        """How many samples the page has."""
        return len(self._samples)

    @property
    def outcomes(self) -> dict[str, float]:
        return self.by("prefixgate_requests_total", "outcome")


class Explained:
    """A dry run's result.

    Attributes:
        backend: id of the backend that would be chosen; "" when the request would wait for one.
        blocks, tokens: by backend id, what is believed to be there of the prompt.
    """

    def __init__(self, answer: Any) -> None:
        self.backend: str = (answer["decision"] or {"backend": ""})["backend"]
        self.blocks: dict[str, int] = answer["match"]["blocks"]
        self.tokens: dict[str, float] = answer["match"]["tokens"]

    @property
    def matched_tokens(self) -> int:
        """Tokens believed to be at the backend that would be chosen."""
        return int(self.tokens.get(self.backend, 0))


class GatewayProcess:
    """Usable as a context manager.

    Args:
        settings: the config file's tree; host, port and log level are filled in.
        directory: for the config file and the log.
        ready: wait until all backends of the config serve; otherwise until the process does.
        environment: on top of this process's own.
        arguments: further ones of the command line.
        tls: how to speak to a listener that has TLS.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        directory: Path,
        *,
        ready: bool = True,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        # Nothing here needs time to notice that a gateway is about to end.
        server = {"host": "127.0.0.1", "port": self.port, "shutdown_delay": 0.0}
        server |= settings.get("server", {})
        directory.mkdir(parents=True, exist_ok=True)
        self.config_path = config = directory / f"gateway-{self.port}.yaml"
        config.write_text(yaml.safe_dump({**settings, "server": server}))
        self.log_path = directory / f"gateway-{self.port}.log"
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), *arguments],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        token = settings.get("admin", {}).get("token")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._key = {"x-api-key": KEY} if settings.get("auth") == AUTH else {}
        headers |= self._key
        verify = tls or False
        self.http = httpx.Client(
            base_url=self.url, headers=headers, timeout=30.0, trust_env=False, verify=verify
        )
        listen = settings.get("admin", {}).get("listen")
        self.admin_url = f"http://{listen}" if listen else self.url
        try:
            self._wait_until_up(len(settings.get("backends", ())) if ready else 0)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _wait_until_up(self, backends: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"the gateway ended with {self._process.returncode}:\n{self.log}"
                )
            try:
                if not backends:
                    self.http.get("/live").raise_for_status()
                    return
                answer = self.http.get("/ready")
                if answer.is_success and answer.json()["backends"].get("healthy") == backends:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        raise TimeoutError(f"not up within {START_SECONDS} s:\n{self.log}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self, timeout: float = STOP_SECONDS) -> int:
        """Wait for its end, without asking for it.

        Returns:
            Its exit code; minus a signal's number if that killed it.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        return self._process.wait(timeout)

    def stop(self) -> int:
        """Ask it to end.

        Returns:
            Its exit code.

        Raises:
            TimeoutError: it did not end in time and was killed.
        """
        self.http.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise TimeoutError(f"not ended within {STOP_SECONDS} s:\n{self.log}") from None

    def rss(self) -> int:
        """Resident memory, bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def client(self, timeout: float = 20.0) -> RawClient:
        return RawClient(self.port, timeout=timeout, headers=self._key.items())

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Args:
        body: sent as it is if it is bytes, else as JSON.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            return self.http.post(
                path, content=body, headers={"content-type": "application/json"} | named
            )
        return self.http.post(path, json=body, headers=named)

    def metrics(self) -> Metrics:
        return Metrics(self.http.get("/metrics").raise_for_status().text)

    def settles(self, condition: Callable[[Metrics], bool], timeout: float = 5.0) -> Metrics:
        """Read the metrics until `condition` holds.

        Raises:
            AssertionError: it did not come to hold in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            metrics = self.metrics()
            if condition(metrics):
                return metrics
            assert time.monotonic() < deadline, f"did not settle within {timeout} s"
            time.sleep(0.02)

    def outcomes_since(self, before: Metrics, count: int = 1) -> dict[str, int]:
        """How requests ended, once `count` more than in `before` have ended."""
        old = before.outcomes
        total = sum(old.values()) + count
        new = self.settles(lambda metrics: sum(metrics.outcomes.values()) >= total).outcomes
        differences = {name: int(value - old.get(name, 0)) for name, value in new.items()}
        return {name: value for name, value in differences.items() if value}

    def settles_idle(self, timeout: float = 5.0) -> Metrics:
        """Wait until nothing is in flight and nothing waits."""
        return self.settles(
            lambda metrics: (
                metrics.total("prefixgate_in_flight") == 0
                and metrics.total("prefixgate_queue_depth") == 0
            ),
            timeout,
        )

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """An admin API call's answer; `path` is what follows /admin/v1."""
        answer = self.http.request(method, f"{self.admin_url}/admin/v1{path}", json=body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def explain(self, path: str, body: Any) -> Explained:
        """What the gateway would do with a request."""
        return Explained(self.admin("POST", "/explain", {"path": path, "body": body}))

    def backend_id(self, url: str) -> str:
        """The opaque id under which the gateway knows a backend."""
        [found] = [entry["id"] for entry in self.admin("GET", "/backends") if entry["url"] == url]
        return str(found)

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
