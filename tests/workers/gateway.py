"""A gateway of several workers, its processes, and a crowd of clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.harness.gateway_process import GatewayProcess, Metrics, free_port
from tests.harness.routes import CHAT

_BODY = json.dumps(CHAT.body(["hello"])).encode()
REQUEST = (
    b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (CHAT.path.encode(), len(_BODY), _BODY)
)


class Workers:
    """Args:
        count: of workers.
        settings: with Redis and backends.

    Attributes:
        gw: the supervisor, as a gateway.
    """

    def __init__(self, count: int, settings: dict[str, Any], directory: Path) -> None:
        self.count = count
        self.admin_port = free_port()
        tree = {"admin": {"listen": f"127.0.0.1:{self.admin_port}"}, **settings}
        self.gw = GatewayProcess(tree, directory, arguments=["--workers", str(count)])
        self.wait_for("all serve", lambda: self.states() == {"serving": count})

    @property
    def pids(self) -> dict[int, int]:
        """Processes by the workers' numbers, as they last said."""
        said = re.findall(r"worker (\d+): listening on \S+, process (\d+)", self.gw.log)
        return {int(number): int(pid) for number, pid in said}

    def kill(self, number: int, by: int = signal.SIGKILL) -> int:
        pid = self.pids[number]
        os.kill(pid, by)
        return pid

    def scrape(self) -> Metrics:
        """Over the admin's socket, which is every worker's."""
        return Metrics(self.ask("/metrics").text)

    def ask(self, path: str, method: str = "GET") -> httpx.Response:
        """Over a connection of its own, so that any worker may get it."""
        with httpx.Client(trust_env=False, timeout=10.0) as client:
            answer = client.request(method, f"http://127.0.0.1:{self.admin_port}{path}")
            return answer.raise_for_status()

    def states(self) -> dict[str, float]:
        return self.scrape().by("prefixgate_workers", "state")

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}\n{self.gw.log}"
            time.sleep(0.05)


@dataclass
class Crowd:
    """Clients that ask once each, over connections of their own.

    Attributes:
        ids: of the answers.
        refused: connections that were not taken.
        broken: answers that did not come whole; such clients ask again.
    """

    port: int
    ids: list[str] = field(default_factory=list)
    refused: int = 0
    broken: int = 0

    def ask(self, count: int, at_once: int = 8) -> None:
        asyncio.run(self._ask(count, at_once))

    async def _ask(self, count: int, at_once: int) -> None:
        turns = asyncio.Semaphore(at_once)
        await asyncio.gather(*(self._one(turns) for _ in range(count)))

    async def _one(self, turns: asyncio.Semaphore) -> None:
        async with turns, asyncio.timeout(30):
            while True:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionRefusedError:
                    self.refused += 1
                    continue
                answer = b""
                with contextlib.suppress(ConnectionError):
                    writer.write(REQUEST)
                    answer = await reader.read()
                writer.close()
                found = re.search(rb"(?i)x-request-id: *(\S+)", answer)
                if answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}") and found:
                    self.ids.append(found[1].decode())
                    return
                self.broken += 1

    @property
    def by_worker(self) -> dict[str, int]:
        """How many each process answered: its ids begin with what is random in it."""
        return counted(id.partition("-")[0] for id in self.ids)


def counted(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
