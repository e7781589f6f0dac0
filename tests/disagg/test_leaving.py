"""What a prefill engine computed just as its client left is released, or counted."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from gateway.disagg import prefill_leg
from gateway.disagg.holding import Orphaned
from gateway.telemetry.metrics import Metrics
from tests.disagg.legs import CONTEXT_ANSWER, NIXL_ANSWER
from tests.harness.inside import eventually, serving
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import settings
from tests.harness.routes import CHAT, text

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWERS = {"nixl_pull": NIXL_ANSWER, "trtllm": CONTEXT_ANSWER, "nixl_push": b'{"choices":[]}'}


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class PrefillEngine:
    """Reads one request, and then does what a test says.

    Attributes:
        asked: the request has come.
        seen: it was seen that nobody is listening.
        counted: to be set when the gateway has settled.
    """

    def __init__(self, play: Play) -> None:
        self.asked, self.seen, self.counted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._play = play

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(size)
        self.asked.set()
        await self._play(reader, writer)
        writer.close()

    async def left(self, reader: asyncio.StreamReader) -> None:
        assert await reader.read() == b""
        self.seen.set()


class Counts(NamedTuple):
    """Prompts that were released, that are held and cannot be released, of which nobody knows
    whether they are held, and that were computed for nobody."""

    released: int = 0
    held: int = 0
    unclear: int = 0
    wasted: int = 0


def leave(protocol: str, play: Callable[[PrefillEngine], Play], *, stream: bool = True) -> Counts:
    """A client leaves while the prefill engine does something."""

    async def run(pools: Pools) -> Counts:
        async def plays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await play(engine)(reader, writer)

        engine = PrefillEngine(plays)
        async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
            tree = settings(pools) | {"health": {"probes": False, "load_interval": None}}
            port = server.sockets[0].getsockname()[1]
            tree["backends"][0]["url"] = f"http://127.0.0.1:{port}"
            async with serving(tree) as inside:
                asked = await inside.send(
                    CHAT.path, {**CHAT.stream([text("left", 400)]), "stream": stream}
                )
                await engine.asked.wait()
                asked.leave()
                async with asyncio.timeout(5):
                    await engine.seen.wait()
                await eventually(lambda: not inside.holds)
                engine.counted.set()
                return counts(inside.gateway.metrics)

    with Pools(protocol) as pools:
        pools.decodes[0].behave(hang=True)
        return asyncio.run(run(pools))


def counts(metrics: Metrics) -> Counts:
    orphaned = metrics.orphaned
    assert Orphaned.FAILED not in orphaned
    return Counts(
        released=metrics.releases,
        held=orphaned.get(Orphaned.PROTOCOL, 0),
        unclear=orphaned.get(Orphaned.UNCLEAR, 0),
        wasted=sum(metrics.wasted_prefills.values()),
    )


def answers(answer: bytes) -> Callable[[PrefillEngine], Play]:
    """It was done, and sees that nobody is listening when its answer is under way."""

    def play(engine: PrefillEngine) -> Play:
        async def with_it(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await engine.left(reader)
            writer.write(answer)

        return with_it

    return play


def begins(answer: bytes) -> Callable[[PrefillEngine], Play]:
    """The end of its answer never comes."""

    def play(engine: PrefillEngine) -> Play:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer[:-10])
            await engine.left(reader)

        return half

    return play


def hangs(engine: PrefillEngine) -> Play:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.left(reader)
        await engine.counted.wait()

    return hang


@pytest.mark.parametrize(
    ("protocol", "counted"),
    [
        ("nixl_pull", Counts(released=1, wasted=1)),
        ("trtllm", Counts(held=1, wasted=1)),
        # The decode leg was out: it may be fetched by now.
        ("nixl_push", Counts(unclear=1, wasted=1)),
    ],
)
def test_an_answer_that_is_under_way_is_heard(protocol: str, counted: Counts) -> None:
    assert leave(protocol, answers(whole(ANSWERS[protocol]))) == counted


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm", "nixl_push"])
def test_one_that_ends_without_a_word_may_just_have_computed_the_prompt(protocol: str) -> None:
    """It saw that nobody is listening before it had written a byte of its answer."""
    assert leave(protocol, answers(b"")) == Counts(unclear=1)


def test_what_can_be_let_go_of_without_an_answer_is() -> None:
    assert leave("mooncake", answers(b"")) == Counts(released=1)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm"])
def test_one_that_refused_holds_nothing(protocol: str) -> None:
    refusal = b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}"
    assert leave(protocol, answers(refusal)) == Counts()


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm"])
def test_an_answer_with_nothing_to_fetch_leaves_nothing_to_count(protocol: str) -> None:
    answer = b'{"choices":[{"finish_reason":"length"}]}'
    assert leave(protocol, answers(whole(answer))) == Counts(wasted=1)


@pytest.mark.parametrize("stream", [True, False])
def test_nor_does_one_that_ends_with_its_first_token(stream: bool) -> None:
    answer = whole(b'{"choices":[{"finish_reason":"stop"}]}')
    assert leave("trtllm", answers(answer), stream=stream) == Counts(wasted=1)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm", "nixl_push"])
def test_an_answer_that_breaks_off_is_counted(protocol: str) -> None:
    counted = leave(protocol, begins(whole(ANSWERS[protocol])))
    assert counted.held + counted.unclear == 1
    assert counted == counted._replace(released=0, wasted=1)


def test_what_comes_is_heard_where_an_engine_cannot_be_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def unknowing(engine: PrefillEngine) -> Play:
        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            engine.seen.set()
            await asyncio.sleep(0.1)
            writer.write(whole(NIXL_ANSWER))

        return play

    monkeypatch.setattr(os, "dup", none_left)
    monkeypatch.setattr(prefill_leg, "LINGER", 10.0)
    assert leave("nixl_pull", unknowing) == Counts(released=1, wasted=1)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm", "nixl_push"])
def test_what_stays_unclear_is_counted(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setattr(prefill_leg, "LINGER", 0.05)
    assert leave(protocol, hangs) == Counts(unclear=1)
