from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.fleet.address import Address
from gateway.fleet.page import INSTANCE, MAX_BYTES, NoPage, Page, PageReader
from gateway.fleet.upstream import FailureKind, Upstream, UpstreamFailure
from tests.harness.gateway_process import free_port

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def read(serve: Serve, timeout: float = 5.0, instance: str = "") -> Page:
    async def main() -> Page:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            address = Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base")
            return await PageReader(address, timeout, instance=instance).get("/health")

    return asyncio.run(main())


def cause(serve: Serve, timeout: float = 5.0) -> str:
    with pytest.raises(NoPage) as caught:
        read(serve, timeout)
    return str(caught.value).removeprefix("GET /health: ")


def answers(sent: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /base/health HTTP/1.1\r\n")
        writer.write(sent)
        writer.close()

    return serve


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n"


def test_a_page() -> None:
    page = read(answers(HEAD % (5, b"") + b"hello"))
    assert (page.path, page.status, page.body) == ("/health", 200, b"hello")
    assert read(answers(b"HTTP/1.0 503 No\r\n\r\nbody")).status == 503


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "the connection ended without an answer"),
        (HEAD % (5, b"") + b"he", "the answer broke off"),
        (b"banana\r\n\r\n", "the answer is not HTTP"),
        (HEAD % (MAX_BYTES + 1, b"") + b"x" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
)
def test_what_is_no_page(sent: bytes, said: str) -> None:
    assert cause(answers(sent)) == said


def test_silence_has_an_end_and_leaves_nothing_open() -> None:
    closed = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()
        closed.set()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        async with server:
            address = Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(NoPage, match=r"no answer within 0\.2 s"):
                await PageReader(address, 0.2).get("/health")
            await asyncio.wait_for(closed.wait(), 5.0)

    asyncio.run(main())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_reading_that_is_given_up_leaves_no_descriptor() -> None:
    """At whatever moment, as when the gateway stops or a page takes too long."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> int:
        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        async with server:
            address = Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            before = descriptors()
            for turns in range(60):
                reading = asyncio.ensure_future(PageReader(address, 5.0).get("/health"))
                for _ in range(turns % 8):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await asyncio.sleep(0.2)
            return descriptors() - before

    assert asyncio.run(main()) <= 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens(host: str) -> None:
    address = Address.parse(f"http://{host}:{free_port()}")
    with pytest.raises(NoPage, match=r"^GET /health: connection refused$") as caught:
        asyncio.run(PageReader(address, 5.0).get("/health"))
    assert caught.value.refused


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "10.0.0.1:80 refused"), "connection refused"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('10.0.0.1', 80)"), "no route to host"),
        (OSError(errno.ENETUNREACH, "to 10.0.0.1"), "network is unreachable"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "not known"),
    ],
)
def test_causes_name_no_address(error: OSError, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _said_of(error, monkeypatch).endswith(said)


def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate is not valid for 'gpu1.internal'")
    error.verify_message = "Hostname mismatch, certificate is not valid for 'gpu1.internal'."
    said = _said_of(error, monkeypatch)
    assert said == "GET /health: TLS: certificate verify failed: Hostname mismatch"


def _said_of(error: OSError, monkeypatch: pytest.MonkeyPatch) -> str:
    async def dial(upstream: Upstream, limit: float) -> None:
        raise UpstreamFailure(FailureKind.CONNECT) from error

    monkeypatch.setattr(Upstream, "dial", dial)
    with pytest.raises(NoPage) as caught:
        asyncio.run(PageReader(Address.parse("http://gpu1.internal"), 1.0).get("/health"))
    assert "10.0.0.1" not in str(caught.value)
    return str(caught.value)


def test_this_gateways_own_pages_are_no_backends() -> None:
    own = answers(HEAD % (0, f"{INSTANCE}: me\r\n".encode()))
    assert read(own).status == 200
    assert read(own, instance="another").status == 200
    with pytest.raises(NoPage, match="leads back to this gateway itself"):
        read(own, instance="me")
