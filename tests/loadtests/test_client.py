"""The client against a server that sends exact bytes, in pieces, with gaps."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from loadtests.client import Answer, Client, ContentReader

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\nx-prefixgate-backend: b1\r\n\r\n"
DONE = b"data: [DONE]\n\n"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def event(**fields: object) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def content(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}}])


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 50,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 32},
    },
)
STREAM = ROLE + content("a") + content("bé") + content("c") + USAGE + DONE


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def ask(handler: Handler, times: int = 1, timeout: float = 10.0) -> list[Answer]:
    """Send `times` requests, one after the other, to a server that handles connections so."""

    async def run() -> list[Answer]:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        client = Client("127.0.0.1", server.sockets[0].getsockname()[1], timeout=timeout)
        try:
            return [await client.post("/v1/chat/completions", b"{}") for _ in range(times)]
        finally:
            client.close()
            server.close()

    return asyncio.run(run())


def sending(*pieces: bytes, gap: float = 0.0, close: bool = False) -> Handler:
    """Answers every request of a connection with these bytes, a pause before each piece."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await read_request(reader)
                for piece in pieces:
                    await asyncio.sleep(gap)
                    writer.write(piece)
                    await writer.drain()
                if close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    return handle


@pytest.mark.parametrize("size", [1, 2, 7, 64, len(STREAM)])
def test_reader_survives_any_split(size: int) -> None:
    answer = Answer(sent=0.0)
    reader = ContentReader(answer)
    for start in range(0, len(STREAM), size):
        reader.feed(STREAM[start : start + size], float(start))
    reader.finish()
    assert answer.error is None
    assert (answer.text, answer.pieces) == ("abéc", 3)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (50, 32)


def test_times_are_of_the_first_and_the_last_content() -> None:
    answer = Answer(sent=1.0)
    reader = ContentReader(answer)
    pieces = [ROLE, content("a"), content("b"), content("c"), USAGE, DONE]
    for now, piece in enumerate(pieces, start=2):
        reader.feed(piece, float(now))
    reader.finish()
    assert (answer.first, answer.last) == (3.0, 5.0)
    assert answer.ttft == 2.0
    assert answer.tpot == 1.0


def test_tokens_are_the_engines_count_where_it_gives_one() -> None:
    answer = Answer(sent=0.0)
    reader = ContentReader(answer)
    reader.feed(content("a b") + content("c"), 1.0)
    reader.finish()
    assert answer.output_tokens == 2
    reader.feed(USAGE, 2.0)
    assert answer.output_tokens == 3


def test_one_token_has_no_time_per_token() -> None:
    answer = Answer(sent=0.0)
    reader = ContentReader(answer)
    reader.feed(content("a") + DONE, 1.0)
    reader.finish()
    assert answer.tpot is None


def test_an_answer_is_timed_as_it_arrives() -> None:
    gap = 0.05
    pieces = [CHUNKED + chunk(ROLE), chunk(content("a")), chunk(content("b")), chunk(USAGE + DONE)]
    [answer] = ask(sending(*pieces, b"0\r\n\r\n", gap=gap))
    assert answer.error is None
    assert answer.headers[b"x-prefixgate-backend"] == b"b1"
    assert answer.first is not None
    assert answer.last is not None
    # Two pauses before the first content, one before the next, two more before the end.
    assert answer.first - answer.sent >= 1.5 * gap
    assert answer.sent < answer.first < answer.last < answer.ended


def test_connections_are_kept() -> None:
    accepted = 0
    answering = sending(CHUNKED + chunk(STREAM) + b"0\r\n\r\n")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await answering(reader, writer)

    answers = ask(handle, times=3)
    assert [answer.text for answer in answers] == ["abéc"] * 3
    assert accepted == 1


def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    head = CHUNKED.replace(b"x-prefixgate-backend: b1", b"connection: close")
    answers = ask(sending(head + chunk(STREAM) + b"0\r\n\r\n", close=True), times=2)
    assert [answer.error for answer in answers] == [None, None]


def failing(*pieces: bytes) -> str:
    [answer] = ask(sending(*pieces, close=True))
    assert answer.error is not None
    return answer.error


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nlater"], "HTTP 503: later"),
        ([], "connection lost"),
        ([CHUNKED + chunk(content("a"))], "connection lost"),
        ([CHUNKED + chunk(content("a")) + b"0\r\n\r\n"], "[DONE]"),
        ([CHUNKED + chunk(event(error={"message": "no"}) + DONE) + b"0\r\n\r\n"], "error event"),
        ([CHUNKED + chunk(b"data: {nonsense\n\n")], "unreadable answer"),
        ([b"SMTP ready\r\n\r\n"], "unreadable answer"),
    ],
)
def test_what_goes_wrong_is_told(pieces: Sequence[bytes], error: str) -> None:
    assert error in failing(*pieces)


def test_a_refused_connection_is_told() -> None:
    async def run() -> Answer:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await Client("127.0.0.1", port).post("/", b"{}")

    answer = asyncio.run(run())
    assert answer.status == 0
    assert answer.error


def test_an_answer_that_does_not_end_times_out() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + chunk(content("a")))
        await reader.read()
        writer.close()

    [answer] = ask(handle, timeout=0.2)
    assert answer.error == "no answer in 0.2 s"
