"""Connections to a backend, against a scripted server on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
import uvloop

from gateway.fleet.time_limits import NO_TIME_LIMITS, TimeLimits
from gateway.fleet.upstream import FailureKind, Headers, Upstream, UpstreamFailure

REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: b\r\ncontent-length: 2\r\n\r\n"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """On the event loop that the gateway runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class Recorder:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.framed: bool | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        self.status, self.headers, self.body = status, headers, first

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self, *, framed: bool) -> None:
        self.framed = framed
        self.done.set_result(None)

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.done.set_exception(failure)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def serving(script: Script, clock: Clock | None = None) -> AsyncIterator[Upstream]:
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = Upstream("127.0.0.1", port, clock or Clock())
    try:
        yield upstream
    finally:
        upstream.close()
        for connection in list(upstream.busy):
            connection.abort()
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(2)


def answering(*answers: bytes, close: bool = False) -> Script:
    """A server that gives these answers to the requests of each connection, in order."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in answers:
                await read_request(reader)
                writer.write(answer)
                await writer.drain()
            if not close:
                await reader.read()
        writer.close()

    return script


async def exchange(upstream: Upstream) -> Recorder:
    connection = upstream.idle() or await upstream.dial(5.0)
    sink = Recorder()
    connection.send(REQUEST, b"{}", sink, NO_TIME_LIMITS)
    await asyncio.wait_for(sink.done, 10)
    return sink


def failure_of(script: Script) -> FailureKind:
    async def main() -> FailureKind:
        async with serving(script) as upstream:
            with pytest.raises(UpstreamFailure) as caught:
                await exchange(upstream)
            return caught.value.kind

    return run(main())


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"


def test_answer_and_reuse() -> None:
    async def main() -> None:
        async with serving(answering(PLAIN, PLAIN)) as upstream:
            first = await exchange(upstream)
            assert (first.status, first.body, first.framed) == (200, b"hello", True)
            assert (b"x-a", b"b") in first.headers
            connection = upstream.idle()
            assert connection is not None
            assert connection.reused
            sink = Recorder()
            connection.send(REQUEST, b"{}", sink, NO_TIME_LIMITS)
            await sink.done
            assert sink.body == b"hello"

    run(main())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            b"abcde",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
            b"abc",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + PLAIN, b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        # both framings: chunked wins
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
            b"abcdef",
        ),
    ],
)
@pytest.mark.parametrize("bytewise", [False, True])
def test_framings(answer: bytes, body: bytes, bytewise: bool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        pieces = [answer[i : i + 1] for i in range(len(answer))] if bytewise else [answer]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()
        writer.close()

    async def main() -> None:
        async with serving(script) as upstream:
            sink = await exchange(upstream)
            assert sink.body == body
            assert sink.framed

    run(main())


def test_body_until_close() -> None:
    async def main() -> None:
        script = answering(b"HTTP/1.0 200 OK\r\n\r\nall of it", close=True)
        async with serving(script) as upstream:
            sink = await exchange(upstream)
            assert (sink.body, sink.framed) == (b"all of it", False)
            assert upstream.idle() is None

    run(main())


def test_failures_are_told_apart() -> None:
    assert failure_of(answering(b"", close=True)) is FailureKind.RESET
    assert failure_of(answering(b"HTTP/1.1 200", close=True)) is FailureKind.INCOMPLETE
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel"
    assert failure_of(answering(cut, close=True)) is FailureKind.INCOMPLETE
    cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
    assert failure_of(answering(cut, close=True)) is FailureKind.INCOMPLETE
    assert failure_of(answering(b"SSH-2.0-x\r\n")) is FailureKind.PROTOCOL
    for status in (b"099", b"600", b"999"):
        odd = b"HTTP/1.1 %b Odd\r\ncontent-length: 2\r\n\r\n{}" % status
        assert failure_of(answering(odd)) is FailureKind.PROTOCOL
    assert failure_of(answering(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000)) is FailureKind.PROTOCOL


def test_reset_inside_a_body_until_close_is_not_its_end() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.05)
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    assert failure_of(script) is FailureKind.INCOMPLETE


def test_refused_connection() -> None:
    async def main() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            upstream = Upstream("127.0.0.1", unused.getsockname()[1], Clock())
            with pytest.raises(UpstreamFailure) as caught:
                await upstream.dial(5.0)
        assert caught.value.kind is FailureKind.CONNECT

    run(main())


def test_a_stall_of_the_gateway_is_not_held_against_a_backend() -> None:
    async def main() -> None:
        async with serving(answering(PLAIN)) as upstream:
            # Both the connection and the end of its time are there when the loop goes on.
            asyncio.get_running_loop().call_soon(time.sleep, 1.0)
            connection = await upstream.dial(0.5)
            connection.abort()

    run(main())


def test_idle_connections_expire_before_the_engine_closes_them() -> None:
    async def main() -> None:
        clock = Clock()
        async with serving(answering(PLAIN, PLAIN), clock) as upstream:
            await exchange(upstream)
            clock.now += 4.5
            assert upstream.idle() is None
            await exchange(upstream)
            clock.now += 4.5
            upstream.tick()
            assert upstream.idle() is None

    run(main())


@pytest.mark.parametrize(
    ("begin", "kind"),
    [(b"", FailureKind.FIRST_BYTE_TIMEOUT), (PLAIN[:-2], FailureKind.IDLE_TIMEOUT)],
)
def test_silence_is_limited(begin: bytes, kind: FailureKind) -> None:
    async def main() -> None:
        async with serving(answering(begin)) as upstream:
            connection = await upstream.dial(5.0)
            sink = Recorder()
            connection.send(REQUEST, b"{}", sink, TimeLimits(5.0, 1.0, 2.0, None))
            while begin and not sink.body:  # noqa: ASYNC110 - the sink has no event to wait for
                await asyncio.sleep(0.01)
            ticks = 0
            while not sink.done.done():
                upstream.tick()
                ticks += 1
            with pytest.raises(UpstreamFailure) as caught:
                await sink.done
            assert caught.value.kind is kind
            # a quarter of a second each; the first after a read only notes the read
            assert ticks == (9 if begin else 4)

    run(main())


@pytest.mark.parametrize("begin", [b"", PLAIN[:-2]])
def test_the_whole_exchange_is_limited(begin: bytes) -> None:
    async def main() -> None:
        clock = Clock()
        async with serving(answering(begin), clock) as upstream:
            connection = await upstream.dial(5.0)
            sink = Recorder()
            connection.send(REQUEST, b"{}", sink, NO_TIME_LIMITS, ends_at=clock.now + 3.0)
            clock.now += 2.9
            upstream.tick()
            assert not sink.done.done()
            clock.now += 0.1
            connection.seen = True  # it is talking: no excuse
            upstream.tick()
            with pytest.raises(UpstreamFailure) as caught:
                await sink.done
            assert caught.value.kind is FailureKind.TOTAL_TIMEOUT

    run(main())


def test_only_exchanges_without_a_byte_are_given_up() -> None:
    async def main() -> None:
        async with serving(answering(PLAIN[:-2])) as begun, serving(answering(b"")) as silent:
            sinks = []
            for upstream in (begun, silent):
                sinks.append(Recorder())
                connection = await upstream.dial(5.0)
                connection.send(REQUEST, b"{}", sinks[-1], NO_TIME_LIMITS)
            while not sinks[0].body:  # noqa: ASYNC110 - the sink has no event to wait for
                await asyncio.sleep(0.01)
            for upstream in (begun, silent):
                upstream.give_up()
            assert not sinks[0].done.done()
            with pytest.raises(UpstreamFailure) as caught:
                await sinks[1].done
            assert caught.value.kind is FailureKind.HUNG

    run(main())


def test_abort_closes_and_says_nothing() -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            closed.set()
            writer.close()

        async with serving(script) as upstream:
            connection = await upstream.dial(5.0)
            sink = Recorder()
            connection.send(REQUEST, b"{}", sink, NO_TIME_LIMITS)
            await asyncio.sleep(0.05)
            connection.abort()
            await asyncio.wait_for(closed.wait(), 10)
            assert not sink.done.done()
            assert not upstream.busy

    run(main())


def test_bytes_after_the_answer_end_the_connection() -> None:
    async def main() -> None:
        async with serving(answering(PLAIN + PLAIN)) as upstream:
            sink = await exchange(upstream)
            assert sink.body == b"hello"
            await asyncio.sleep(0.05)
            assert upstream.idle() is None

    run(main())


def test_a_sink_that_fails_still_hears_of_the_end() -> None:
    class Broken(Recorder):
        def on_end(self, *, framed: bool) -> None:
            raise RuntimeError("cannot")

    async def main() -> None:
        async with serving(answering(PLAIN)) as upstream:
            connection = await upstream.dial(5.0)
            sink = Broken()
            connection.send(REQUEST, b"{}", sink, NO_TIME_LIMITS)
            with pytest.raises(UpstreamFailure):
                await asyncio.wait_for(sink.done, 10)

    run(main())


def test_a_connection_lost_before_it_is_used_fails_at_once() -> None:
    """Nobody was told when it was lost, and no limit should have to find out."""

    async def main() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()

        async with serving(refuse) as upstream:
            connection = await upstream.dial(5.0)
            await asyncio.sleep(0.2)
            assert connection.transport.is_closing()
            sink = Recorder()
            connection.send(REQUEST, b"{}", sink, NO_TIME_LIMITS)
            with pytest.raises(UpstreamFailure) as caught:
                await asyncio.wait_for(sink.done, 5)
            assert caught.value.kind is FailureKind.RESET
            assert not upstream.busy

    run(main())
