from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.disagg import prefill_leg
from gateway.disagg.prefill_leg import AnswerTooLarge, LegRefused, PrefillLeg
from gateway.fleet.upstream import FailureKind, UpstreamFailure

JSON = [(b"content-type", b"application/json")]


class Wire:
    """Stands for the connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    @property
    def aborted(self) -> bool:
        return self.gone.is_set()

    def abort(self) -> None:
        self.gone.set()


def run(script: Callable[[PrefillLeg, Wire], Awaitable[None]], *, needed: bool = True) -> None:
    async def main() -> None:
        wire = Wire()
        leg = PrefillLeg(needed=needed)
        leg.carry(wire)
        await script(leg, wire)

    asyncio.run(main())


def test_an_answer_is_there_once_its_json_is_whole() -> None:
    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(200, JSON, b'{"a":{"b":1}')
        assert not leg.done.done()
        leg.on_body(b',"c":2}')
        assert await leg.done == b'{"a":{"b":1},"c":2}'
        assert not wire.aborted

    run(script)


def test_a_tail_is_waited_for_by_nobody_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_leg, "TAIL", 0.01)

    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(200, JSON, b"{}")
        assert await leg.done == b"{}"
        async with asyncio.timeout(10):
            await wire.gone.wait()

    run(script)


def test_what_ends_is_not_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_leg, "TAIL", 0.01)

    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(200, JSON, b"{}")
        leg.on_end(framed=True)
        await asyncio.sleep(0.05)
        assert not wire.aborted

    run(script)


def test_a_refusal_keeps_its_words() -> None:
    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(400, JSON, b'{"error":')
        leg.on_body(b'"no"}')
        with pytest.raises(LegRefused) as refused:
            await leg.done
        assert (refused.value.status, refused.value.body) == (400, b'{"error":"no"}')

    run(script)


def test_an_answer_without_an_end_of_its_own_must_be_whole() -> None:
    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(200, JSON, b'{"a":')
        leg.on_end(framed=False)
        with pytest.raises(UpstreamFailure) as failed:
            await leg.done
        assert failed.value.kind is FailureKind.INCOMPLETE

    run(script)


@pytest.mark.parametrize("needed", [True, False])
def test_a_stream_is_no_answer(needed: bool) -> None:
    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(200, [(b"content-type", b"text/event-stream")], b": hi\n\n")
        with pytest.raises(UpstreamFailure):
            await leg.done
        assert wire.aborted

    run(script, needed=needed)


@pytest.mark.parametrize(("status", "kind"), [(200, AnswerTooLarge), (500, UpstreamFailure)])
def test_p10_what_is_too_large_is_dropped(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(prefill_leg, "MAX_ANSWER", 1000)

    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(status, JSON, b'{"a":"' + b"x" * 1000)
        with pytest.raises(kind):
            await leg.done
        assert wire.aborted

    run(script)


def test_p10_of_what_nobody_needs_the_end_is_kept() -> None:
    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.on_head(200, JSON, b'{"a":"')
        for _ in range(100):
            leg.on_body(b"x" * 10_000)
        leg.on_body(b'","usage":{}}')
        leg.on_end(framed=True)
        answer = await leg.done
        assert len(answer) <= prefill_leg.LAST_BYTES
        assert answer.endswith(b'"usage":{}}')

    run(script, needed=False)


def test_one_that_is_cancelled_is_aborted() -> None:
    async def script(leg: PrefillLeg, wire: Wire) -> None:
        leg.cancel()
        assert wire.aborted
        assert leg.done.cancelled()

    run(script)
