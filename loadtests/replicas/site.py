"""Simulated engines and several real gateways before them, as processes."""

from __future__ import annotations

import http.client
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Answer, Client
from loadtests.process import HOST, Processes, free_ports

MODEL = "model"
CHAT = "/v1/chat/completions"
_EXPLAIN = "/admin/v1/explain"


@dataclass(slots=True, frozen=True)
class Site:
    engines: Sequence[str]
    gateways: Sequence[Gateway]


def open_site(
    processes: Processes,
    directory: Path,
    *,
    engines: int,
    gateways: int,
    redis: Mapping[str, Any] | None,
    speed: float,
    kv_tokens: int,
) -> Site:
    """
    Args:
        redis: the gateways' section; None where they share nothing.
        speed, kv_tokens: of each engine.

    Raises:
        ProcessError: something does not start.
    """
    ports = free_ports(engines)
    started = []
    for port in ports:
        command = [sys.executable, "-m", "gateway.cli", "sim-engine", "--port", f"{port}"]
        command += ["--model", MODEL, "--speed", f"{speed}", "--kv-tokens", f"{kv_tokens}"]
        started.append(processes.start(f"engine {port}", command))
    for service, port in zip(started, ports, strict=True):
        service.wait_ready(port, "/health")
    urls = [f"http://{HOST}:{port}" for port in ports]
    return Site(urls, [open_gateway(processes, directory, urls, redis) for _ in range(gateways)])


def open_gateway(
    processes: Processes, directory: Path, engines: Sequence[str], redis: Mapping[str, Any] | None
) -> Gateway:
    """One more gateway, once it is ready.

    Raises:
        ProcessError: it does not get ready.
    """
    own = directory / f"gateway-{len(list(directory.glob('gateway-*')))}"
    own.mkdir()
    return Gateway(processes, own, engines, {} if redis is None else {"redis": dict(redis)})


class Balancer:
    """Sends each request through any of the gateways."""

    def __init__(self, gateways: Iterable[Gateway], seed: int) -> None:
        self._clients = [Client(HOST, gateway.port) for gateway in gateways]
        self._dice = random.Random(f"balancer:{seed}")

    async def post(self, path: str, body: bytes) -> Answer:
        return await self._dice.choice(self._clients).post(path, body)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def ask(prompt: str, tokens: int = 1) -> dict[str, Any]:
    """A request that is answered with so many tokens."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def matched(gateway: Gateway, request: Mapping[str, Any]) -> float:
    """Tokens of a request's prompt that a gateway believes cached at the engine that has most of
    it. It learns nothing from being asked.

    Raises:
        OSError: it does not answer.
    """
    body = msgspec.json.encode({"path": CHAT, "body": request})
    connection = http.client.HTTPConnection(HOST, gateway.port, timeout=5)
    try:
        connection.request("POST", _EXPLAIN, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"POST {_EXPLAIN}: status {answer.status}: {text[:200]!r}")
    tokens = msgspec.json.decode(text)["match"]["tokens"]
    return float(max(tokens.values(), default=0.0))
