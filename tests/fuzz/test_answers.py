"""Any bytes that an engine may answer: passed on as they are, or one failure."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.time_limits import NO_TIME_LIMITS
from gateway.fleet.upstream import Connection, Upstream, UpstreamFailure
from gateway.http.client import Headers, Source
from gateway.http.dialects.registry import dialect_for
from gateway.http.relay import Relay
from tests.fuzz.effort import effort
from tests.fuzz.mutations import mutated, pieces
from tests.fuzz.transport import KeptTransport

CHAT = dialect_for("POST", "/v1/chat/completions")


class KeptClient:
    """Keeps what it is sent, and insists on the order."""

    gone = False
    source: Source | None = None
    on_gone: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.length: int | None = None
        self.end_seen = ""

    @property
    def started(self) -> bool:
        return self.status > 0

    def start(self, status: int, headers: Headers, length: int | None, body: bytes = b"") -> None:
        assert not self.started
        assert 200 <= status <= 599
        for name, value in headers:
            assert not set(b"\r\n\0") & {*name, *value}
            assert name not in (b"connection", b"transfer-encoding", b"content-length")
        self.status, self.length = status, length
        self.write(body)

    def write(self, data: bytes) -> None:
        assert self.started
        assert not self.end_seen
        self.body += data

    def end(self) -> None:
        assert self.started
        assert not self.end_seen
        self.end_seen = "end"

    def abort(self) -> None:
        assert not self.end_seen
        self.end_seen = "abort"

    def take_body(self) -> bytes | None:
        return b""

    def watch(self) -> None: ...
    def close_after(self) -> None: ...
    async def drained(self) -> None: ...


async def exchange(
    parts: list[bytes], accept: bytes = b"gzip"
) -> tuple[KeptClient, Relay, UpstreamFailure | None]:
    client = KeptClient()
    connection = Connection(Upstream("h", 1, lambda: 0.0))
    transport = KeptTransport(connection)
    connection.connection_made(transport)
    relay = Relay(
        client, CHAT, lambda: 0.0, [], accept, lambda: None, may_retry=False, retry_after=1
    )
    relay.carry(connection)
    connection.send(b"POST / HTTP/1.1\r\n\r\n", b"", relay, NO_TIME_LIMITS)
    for part in parts:
        if not transport.lost:
            connection.data_received(part)
        await asyncio.sleep(0)
    transport.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert relay.done.done()
    failure = relay.done.exception()
    assert failure is None or isinstance(failure, UpstreamFailure)
    return client, relay, failure


def event(text: str) -> bytes:
    delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(delta).encode()


events = st.one_of(
    st.builds(event, st.text(max_size=5)),
    st.sampled_from(
        [
            b": ping",
            b"event: x\ndata: {}",
            b'data: {"error":{"type":"t","message":"m"}}',
            b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
            b"data: [DONE]",
        ]
    ),
)
ends = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
streams = st.lists(st.builds(bytes.__add__, events, ends), max_size=8).map(b"".join)


def framed(body: bytes, *headers: bytes, chunked: bool) -> bytes:
    if chunked:
        halves = (body[: len(body) // 2], body[len(body) // 2 :])
        parts = [b"%x\r\n%b\r\n" % (len(half), half) for half in halves if half]
        lines, sent = [b"transfer-encoding: chunked"], b"".join([*parts, b"0\r\n\r\n"])
    else:
        lines, sent = [b"content-length: %d" % len(body)], body
    return b"\r\n".join([b"HTTP/1.1 200 OK", *headers, *lines]) + b"\r\n\r\n" + sent


@effort(200)
@given(streams, st.booleans(), st.booleans(), st.data())
def test_a_stream_is_the_same_however_it_is_cut(
    stream: bytes, chunked: bool, coded: bool, data: st.DataObject
) -> None:
    headers = [b"content-type: text/event-stream"]
    body = stream
    if coded:
        headers.append(b"content-encoding: gzip")
        body = gzip.compress(stream, mtime=0)
    answer = framed(body, *headers, chunked=chunked)
    whole, known, _ = asyncio.run(exchange([answer]))
    parts = data.draw(pieces(answer))
    client, relay, failure = asyncio.run(exchange(parts))
    assert failure is None
    assert (client.status, client.end_seen) == (200, "end")
    assert client.body == whole.body == body
    assert relay.scanner is not None
    assert known.scanner is not None
    for fact in ("content_events", "first_content", "done", "error", "usage", "tokens"):
        assert getattr(relay.scanner, fact) == getattr(known.scanner, fact)
    if coded:
        plain, _, _ = asyncio.run(exchange(parts, accept=b""))
        assert plain.body == stream


@effort(600)
@given(st.data(), st.booleans(), st.sampled_from(["text/event-stream", "application/json", "x/y"]))
def test_nearly_answers_end_once(data: st.DataObject, chunked: bool, kind: str) -> None:
    answer = framed(data.draw(streams), b"content-type: " + kind.encode(), chunked=chunked)
    parts = data.draw(pieces(data.draw(mutated(answer))))
    client, relay, failure = asyncio.run(exchange(parts))
    if failure is not None:
        assert not client.started
        return
    assert client.end_seen
    if client.end_seen == "end" and relay.failure is None and client.length is not None:
        assert len(client.body) >= client.length
