"""The gateway under test, and what can be seen of it from outside."""

from __future__ import annotations

import http.client
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from loadtests.process import HOST, Processes, Service, free_ports

_LOG_SECONDS = 5.0
_COMPLAINT = re.compile(r"ERROR|CRITICAL|never retrieved|never awaited")
_TRACEBACK = re.compile(r"^Traceback.*\n(?: .*\n)*?((?: .*\n){0,4}\S.*)$", re.MULTILINE)

STORM: dict[str, Any] = {
    "server": {"stream_ping": 0.5},
    "health": {"interval": 0.5, "timeout": 0.5},
    "timeouts": {"connect": 1.0, "first_byte": 1.5, "idle": 1.0},
    "scheduling": {
        "decode": {"max_requests": 8, "max_waiting": 200, "max_wait": 10.0},
        "prefill": {"max_requests": 4, "max_wait": 10.0},
    },
    # Small: it is full before memory is looked at for the first time.
    "index": {"max_blocks": 20_000},
}
"""Sections of the config: all limits short, so that each of them is met."""

BASE_METRICS = {
    "prefixgate_in_flight": "requests in flight",
    "prefixgate_queue_depth": "requests waiting",
    "prefixgate_queue_held": "requests held",
    "prefixgate_queue_unplaced": "requests without a place",
    "prefixgate_queue_tenants": "tenants waiting",
    "prefixgate_index_bookings": "bookings of the index",
}
"""What must be nothing when nobody asks for anything."""


class Metrics:
    """One reading of /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]

    def total(self, name: str) -> float:
        return sum(sample.value for sample in self._samples if sample.name == name)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by one label's values."""
        sums: dict[str, float] = {}
        for sample in self._samples:
            if sample.name == name:
                key = sample.labels.get(label, "")
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def quantile(self, name: str, share: float) -> float:
        """Upper bound of the bucket that the quantile of a histogram lies in."""
        buckets = self.by(f"{name}_bucket", "le")
        wanted = share * buckets.get("+Inf", 0.0)
        return min((float(le) for le, count in buckets.items() if count >= wanted), default=0.0)


@dataclass(slots=True, frozen=True)
class Rest:
    """What a gateway holds when nothing is asked of it.

    Attributes:
        held: by what it is; everything there is must be 0 but descriptors.
    """

    held: Mapping[str, int]
    descriptors: int

    def left_over(self, base: Rest) -> list[str]:
        """What is more than nothing, or than it was."""
        found = [f"{count} {what}" for what, count in self.held.items() if count]
        more = self.descriptors - base.descriptors
        return found + ([f"{more} more descriptors than at first"] if more > 0 else [])


class AccessLine(msgspec.Struct):
    """As much of the access log as is compared."""

    id: str
    outcome: str | None
    status: int
    disconnect_phase: str | None = None


class Gateway:
    """
    Args:
        settings: sections of its config; where it listens and what it logs is filled in.

    Raises:
        ProcessError: it does not get ready.
    """

    def __init__(
        self,
        processes: Processes,
        directory: Path,
        engines: Sequence[str],
        settings: Mapping[str, Any],
    ) -> None:
        (self.port,) = free_ports(1)
        self._access = directory / "access.jsonl"
        tree: dict[str, Any] = dict(settings)
        tree["server"] = {**settings.get("server", {}), "host": HOST, "port": self.port}
        tree["backends"] = [{"url": url} for url in engines]
        tree["log"] = {"access": str(self._access)}
        config = directory / "gateway.yaml"
        config.write_text(yaml.safe_dump(tree), encoding="utf-8")
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
        self.service: Service = processes.start("gateway", command)
        ready = f'"healthy":{len(engines)}'.encode()
        self.service.wait_ready(self.port, "/ready", expect=ready)

    @property
    def pid(self) -> int:
        return self.service.process.pid

    def rss(self) -> int:
        """Resident memory, bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> Metrics:
        return Metrics(self._get("/metrics").decode())

    def states(self) -> dict[str, str]:
        """Of the backends, by URL."""
        return {entry["url"]: entry["state"] for entry in self._json("/admin/v1/backends")}

    def rest(self) -> Rest:
        metrics = self.metrics()
        held = {what: int(metrics.total(name)) for name, what in BASE_METRICS.items()}
        held["live requests"] = len(self._json("/admin/v1/requests"))
        return Rest(held, self._descriptors())

    def access_log(self, count: int) -> list[AccessLine]:
        """Its lines, once there are so many or no more come: it is written in the background."""
        decode = msgspec.json.Decoder(AccessLine).decode
        deadline = time.monotonic() + _LOG_SECONDS
        while True:
            data = self._access.read_bytes()
            if data.count(b"\n") >= count or time.monotonic() > deadline:
                return [decode(line) for line in data.splitlines()]
            time.sleep(0.1)

    def complaints(self) -> list[str]:
        """What its log tells of errors inside it; of a traceback, the end."""
        text = self.service.log.read_text(encoding="utf-8", errors="replace")
        found = [line for line in text.splitlines() if _COMPLAINT.search(line)]
        ends = [match[1] for match in _TRACEBACK.finditer(text)]
        return found + [" ".join(end.split()) for end in ends]

    def sockets(self) -> list[str]:
        """Its TCP sockets as `local port, remote port, state`; states as the kernel has them."""
        own = set()
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                own.add(os.readlink(entry))
        found = []
        for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in own:
                ports = (int(address.partition(":")[2], 16) for address in (local, remote))
                found.append(" ".join((*map(str, ports), state)))
        return found

    def _descriptors(self) -> int:
        """Open ones. Of probes that are under way some may be among them."""
        count = 0
        with suppress(FileNotFoundError):
            count = len(os.listdir(f"/proc/{self.pid}/fd"))
        return count

    def _json(self, path: str) -> Any:
        return msgspec.json.decode(self._get(path))

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise OSError(f"GET {path}: status {answer.status}")
        return body
