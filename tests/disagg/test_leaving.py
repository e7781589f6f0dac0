"""What a prefill engine computed just as its client left is released, or counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.disagg import prefill_leg
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
    """

    def __init__(self, play: Play) -> None:
        self.asked, self.seen = asyncio.Event(), asyncio.Event()
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


def leave(protocol: str, play: Callable[[PrefillEngine], Play]) -> tuple[int, int, int]:
    """A client leaves while the prefill engine does something.

    Returns:
        Prompts released, not released, and computed for nobody, as they are counted.
    """

    async def run(pools: Pools) -> tuple[int, int, int]:
        async def plays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await play(engine)(reader, writer)

        engine = PrefillEngine(plays)
        async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
            tree = settings(pools) | {"health": {"probes": False, "load_interval": None}}
            port = server.sockets[0].getsockname()[1]
            tree["backends"][0]["url"] = f"http://127.0.0.1:{port}"
            async with serving(tree) as inside:
                before = asyncio.all_tasks()
                asked = await inside.send(CHAT.path, CHAT.stream([text("left", 400)]))
                await engine.asked.wait()
                asked.leave()
                async with asyncio.timeout(5):
                    await engine.seen.wait()
                await eventually(lambda: not inside.holds)
                # Releases are tasks of their own.
                await eventually(lambda: asyncio.all_tasks() <= before)
                return counts(inside.gateway.metrics)

    with Pools(protocol) as pools:
        pools.decodes[0].behave(hang=True)
        return asyncio.run(run(pools))


def counts(metrics: Metrics) -> tuple[int, int, int]:
    return metrics.releases, metrics.orphaned, sum(metrics.wasted_prefills.values())


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
        async with asyncio.timeout(10):
            while True:  # until it is reset
                writer.write(b"")
                await asyncio.sleep(0.01)
                if writer.transport.is_closing():
                    return

    return hang


@pytest.mark.parametrize(
    ("protocol", "counted"),
    [("nixl_pull", (1, 0, 1)), ("trtllm", (0, 1, 1)), ("nixl_push", (0, 1, 1))],
)
def test_an_answer_that_is_under_way_is_heard(protocol: str, counted: tuple[int, int, int]) -> None:
    assert leave(protocol, answers(whole(ANSWERS[protocol]))) == counted


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm", "nixl_push"])
def test_one_that_ends_without_a_word_has_dropped_the_request(protocol: str) -> None:
    assert leave(protocol, answers(b"")) == (0, 0, 0)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm"])
def test_one_that_refused_holds_nothing(protocol: str) -> None:
    assert leave(protocol, answers(b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}")) == (0, 0, 0)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm", "nixl_push"])
def test_an_answer_that_breaks_off_is_counted(protocol: str) -> None:
    assert leave(protocol, begins(whole(ANSWERS[protocol]))) == (0, 1, 1)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm", "nixl_push"])
def test_what_stays_unclear_is_counted(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setattr(prefill_leg, "LINGER", 0.05)
    assert leave(protocol, hangs) == (0, 1, 0)
