"""An ASGI application under our uvicorn protocol, in a thread, on a free port."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from gateway.config import Server
from gateway.http.server import GatewayProtocol, StrictProtocol


@contextlib.contextmanager
def serving(
    app: Any, *, parser: str = "httptools", limits: Server | None = None, **options: Any
) -> Iterator[int]:
    """Yields the port."""
    protocol = GatewayProtocol if parser == "httptools" else StrictProtocol
    settings_now = limits or Server()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    settings: dict[str, Any] = {
        "http": partial(protocol, lambda: settings_now, lambda code: None),
        "loop": "uvloop",
        "lifespan": "off",
        "log_config": None,
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
    }
    server = uvicorn.Server(uvicorn.Config(app, **(settings | options)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def talk(port: int, data: bytes, *, until: bytes = b"", count: int = 1) -> bytes:
    """Send `data`, read until `until` was seen `count` times or the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(data)
        got = b""
        while not until or got.count(until) < count:
            more = sock.recv(65536)
            if not more:
                break
            got += more
        return got
