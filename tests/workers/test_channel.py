"""What two processes say to each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from gateway.workers import channel as channels
from gateway.workers.channel import MAX_UNANSWERED, Answer, Channel, Failed, Silent


async def echo(what: str, body: bytes) -> bytes:
    return what.encode() + body


async def mute(what: str, body: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


Talk = Callable[[Channel, Channel], Awaitable[None]]


def between(talk: Talk, answer: Answer = echo) -> None:
    async def run() -> None:
        sockets = socket.socketpair()
        one, other = Channel(echo), Channel(answer)
        ends = [await each.open(sock) for each, sock in zip((one, other), sockets, strict=True)]
        async with asyncio.timeout(20):
            await talk(one, other)
        for end in ends:
            end.cancel()

    asyncio.run(run())


def test_both_sides_ask_at_once() -> None:
    async def talk(one: Channel, other: Channel) -> None:
        asked = [each.ask("n", b"%d" % n) for n in range(50) for each in (one, other)]
        answers = await asyncio.gather(*asked)
        assert answers == [b"n%d" % n for n in range(50) for _ in range(2)]

    between(talk)


def test_a_large_answer_comes_whole() -> None:
    async def talk(one: Channel, other: Channel) -> None:
        body = bytes(range(256)) * 20_000
        assert await one.ask("", body) == body

    between(talk)


@pytest.mark.parametrize(
    ("error", "told"), [(Failed("it is Sunday"), "it is Sunday"), (KeyError("x"), "KeyError")]
)
def test_a_failure_is_told(error: Exception, told: str) -> None:
    async def fail(what: str, body: bytes) -> bytes:
        raise error

    async def talk(one: Channel, other: Channel) -> None:
        with pytest.raises(Failed, match=told):
            await one.ask("work")
        assert await other.ask("still", b" there") == b"still there"

    between(talk, fail)


def test_who_does_not_answer_is_not_asked_for_ever() -> None:
    async def talk(one: Channel, other: Channel) -> None:
        for _ in range(MAX_UNANSWERED):
            with pytest.raises(Silent, match="within"):
                await one.ask("hello", timeout=0.001)
        with pytest.raises(Silent, match=str(MAX_UNANSWERED)):
            await one.ask("hello")

    between(talk, mute)


def test_who_answers_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_UNANSWERED", 1)
    gate = asyncio.Event()

    async def late(what: str, body: bytes) -> bytes:
        await gate.wait()
        return body

    async def talk(one: Channel, other: Channel) -> None:
        with pytest.raises(Silent):
            await one.ask("", b"first", timeout=0.001)
        gate.set()
        while True:
            try:
                answer = await one.ask("", b"second")
                break
            except Silent:
                await asyncio.sleep(0.001)
        assert answer == b"second"

    between(talk, late)


def test_the_end_of_one_is_seen_by_the_other() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(echo)
        ended = await channel.open(ours)
        asked = asyncio.create_task(channel.ask("hello"))
        await asyncio.sleep(0)
        theirs.send(b"\x00\x00")  # in the middle of a word
        theirs.close()
        async with asyncio.timeout(20):
            await ended
            with pytest.raises(Silent, match="has ended"):
                await asked
            with pytest.raises(Silent, match="has ended"):
                await channel.ask("hello")

    asyncio.run(run())
