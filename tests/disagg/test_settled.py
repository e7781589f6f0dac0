"""Each prompt that a prefill engine computes is fetched, released or counted, whenever a client
leaves and whatever fails.

The engines' own books say what they hold for nobody. What the gateway counts as held is held; what
is held is counted, if only as unclear.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.disagg import prefill_leg
from gateway.disagg.holding import Orphaned
from gateway.fleet.upstream import Upstream
from gateway.http import prefill_legs
from gateway.http.context import RequestContext
from tests.disagg.faults import STREAM_HEAD
from tests.disagg.legs import NIXL_ANSWER
from tests.disagg.test_leaving import PrefillEngine, whole
from tests.disagg.test_removal import id_of, remove
from tests.harness.behaviour import Behaviour
from tests.harness.inside import InsideGateway, eventually, serving
from tests.harness.pd.kv import Fate
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.reference import PROTOCOLS
from tests.harness.pd.settings import settings
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, text

LONG = 3600.0
TOLD = ("mooncake", "sglang", "shared_store")
"""Protocols in which nothing stays held: what lets go of a prompt needs no answer of its engine."""
UNASKED = {"probes": False, "load_interval": None}
_PATIENT = {"failures": 1000, "share": 1.0}


def run(
    protocol: str, script: Callable[[Pools, InsideGateway], Awaitable[None]], **sections: Any
) -> None:
    async def main(pools: Pools) -> None:
        tree = settings(pools) | {"health": UNASKED, "breaker": _PATIENT} | sections
        async with serving(tree) as inside:
            await script(pools, inside)

    with Pools(protocol) as pools:
        asyncio.run(main(pools))


def body(name: str) -> dict[str, Any]:
    return CHAT.stream([text(name, 400)])


def kept(pools: Pools) -> int:
    """Prompts that prefill engines hold for nobody."""
    return [kv.fate for engine in pools.prefills for kv in engine.kv.entries].count(Fate.HELD)


async def settled(pools: Pools, inside: InsideGateway) -> dict[str, int]:
    """Returns:
    What is counted as orphaned, by why, which was compared with what the engines hold.
    """
    await eventually(lambda: not inside.holds)
    # Engines see a moment later that nobody is listening.
    legs = [leg for engine in pools.engines for leg in engine.legs]
    await eventually(lambda: all(leg.over for leg in legs))
    orphaned = inside.gateway.metrics.orphaned
    unclear = orphaned.get(Orphaned.UNCLEAR, 0)
    sure = sum(orphaned.values()) - unclear
    assert sure <= kept(pools) <= sure + unclear
    if pools.protocol in TOLD:
        assert kept(pools) == 0
    return dict(orphaned)


def _slow(request: Recorded, **how: Any) -> Behaviour | None:
    """How legs are answered, and what releases them is not."""
    return Behaviour(**how) if request.path.endswith(CHAT.path) else None


def _live(inside: InsideGateway) -> list[RequestContext]:
    return list(inside.gateway.proxy.live.values())


def _status(context: RequestContext) -> int:
    """Of the backend's answer; 0 before."""
    return 0 if context.relay is None else context.relay.status


# a client leaves at a point that the engines show

Ready = Callable[[Pools], bool]


def _computing(pools: Pools) -> Ready:
    pools.prefills[0].rule = lambda request: _slow(request, ttft=LONG)
    return lambda pools: bool(pools.prefills[0].legs)


def _computed(pools: Pools) -> Ready:
    """Its engine has not begun to say so."""
    pools.prefills[0].late = LONG
    return lambda pools: any(leg.kv is not None for leg in pools.prefills[0].legs)


def _head(pools: Pools) -> Ready:
    """The head of the answer is here, and the body is not."""
    pools.prefills[0].behave(pieces=2, tail=LONG)
    return lambda pools: any(leg.request.answer for leg in pools.prefills[0].legs)


def _sent(pools: Pools) -> Ready:
    """The decode leg is, and has shown nothing."""
    pools.decodes[0].behave(hang=True)
    return lambda pools: bool(pools.decodes[0].legs)


def _read(pools: Pools) -> Ready:
    pools.decodes[0].transfer = LONG
    return lambda pools: any(leg.kv is not None for leg in pools.decodes[0].legs)


def _answered(pools: Pools) -> Ready:
    """The head of the decode engine's answer is out, and nothing else."""
    pools.decodes[0].behave(early_head=True, ttft=LONG)
    return lambda pools: bool(pools.decodes[0].legs)


POINTS = (_computing, _computed, _head, _sent, _read, _answered)
NEVER = {"sglang": (_computed, _head), "shared_store": (_computed,)}
"""Where nothing is held, or the answer comes once it is fetched."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_that_leaves_at_any_point(protocol: str) -> None:
    async def script(pools: Pools, inside: InsideGateway) -> None:
        for point in POINTS:
            if point in NEVER.get(protocol, ()):
                continue
            pools.reset()
            inside.gateway.metrics.orphaned.clear()
            ready = point(pools)
            asked = await inside.send(CHAT.path, body(point.__name__))
            await eventually(lambda ready=ready: ready(pools))
            asked.leave()
            await settled(pools, inside)

    run(protocol, script)


def test_a_decode_engine_that_has_only_begun_to_answer_tells_nobody() -> None:
    """With TensorRT-LLM; it had the request in its queue, and had fetched nothing."""

    async def script(pools: Pools, inside: InsideGateway) -> None:
        pools.decodes[0].rule = lambda request: _slow(request, script=(STREAM_HEAD, LONG))
        asked = await inside.send(CHAT.path, body("queued"))
        await eventually(lambda: any(_status(each) == 200 for each in _live(inside)))
        asked.leave()
        assert await settled(pools, inside) == {Orphaned.UNCLEAR: 1}
        assert kept(pools) == 1

    run("trtllm", script)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_that_leave_around_the_prefills_end(protocol: str) -> None:
    chance = random.Random(protocol)

    async def one(inside: InsideGateway, number: int) -> None:
        asked = await inside.send(CHAT.path, body(f"{number} leaves"))
        await asyncio.sleep(chance.uniform(0.01, 0.05))
        asked.leave()

    async def script(pools: Pools, inside: InsideGateway) -> None:
        prefill, decode = pools.prefills[0], pools.decodes[0]
        prefill.late = 0.003
        prefill.rule = lambda request: _slow(
            request, ttft=0.02, pieces=chance.choice((1, 2)), tail=0.002
        )
        decode.rule = lambda request: _slow(
            request, ttft=0.01, early_head=chance.choice((True, False))
        )
        await asyncio.gather(*(one(inside, number) for number in range(40)))
        await settled(pools, inside)

    run(protocol, script)


# what else ends a handover


@pytest.mark.parametrize("protocol", ["nixl_pull", "nixl_push", "mooncake", "trtllm"])
def test_what_the_first_of_two_attempts_had_is_settled_as_well(protocol: str) -> None:
    """The decode engine fails before the first byte, and serves the request alone then."""

    async def script(pools: Pools, inside: InsideGateway) -> None:
        pools.decodes[0].next(status=500)
        answer = await inside.ask(CHAT.path, body("again"))
        assert answer.header("x-prefixgate-handover") == "local; decode"
        orphaned = await settled(pools, inside)
        assert sum(orphaned.values()) == (protocol in ("nixl_push", "trtllm"))

    run(protocol, script)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_whose_time_is_over(protocol: str) -> None:
    async def script(pools: Pools, inside: InsideGateway) -> None:
        pools.decodes[0].transfer = LONG
        pools.decodes[0].behave(ttft=LONG)
        await inside.ask(CHAT.path, body("late"))
        pools.reset()
        inside.gateway.metrics.orphaned.clear()
        pools.prefills[0].late = LONG
        await inside.ask(CHAT.path, body("later"))
        await settled(pools, inside)

    run(protocol, script, timeouts={"total": 0.3})


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_an_engine_that_is_removed_between_the_legs(first: str) -> None:
    """The decode engine is the one that could tell the other to let go."""
    go_on = asyncio.Event()

    def waits(upstream: Upstream) -> None:
        dial = upstream.dial

        async def late(limit: float) -> Any:
            await go_on.wait()
            return await dial(limit)

        upstream.dial, upstream.idle = late, lambda: None  # type: ignore[method-assign]

    async def script(pools: Pools, inside: InsideGateway) -> None:
        decode, prefill = pools.decodes[0], pools.prefills[0]
        waits(inside.gateway.upstreams[id_of(inside, decode)])
        asked = await inside.send(CHAT.path, body("between"))
        await eventually(lambda: any(leg.over for leg in prefill.parts(Part.PREFILL)))
        removed = decode if first == "decode" else prefill
        await eventually(lambda: any(each.phase == "connect" for each in _live(inside)))
        assert await remove(inside, removed) == 204
        asked.leave()
        go_on.set()
        orphaned = await settled(pools, inside)
        assert orphaned == ({Orphaned.FAILED: 1} if first == "decode" else {})

    run("nixl_pull", script)


def test_a_release_that_is_not_let_in_has_told_nobody() -> None:
    async def script(pools: Pools, inside: InsideGateway) -> None:
        decode = pools.decodes[0]
        decode.behave(hang=True)
        asked = await inside.send(CHAT.path, body("key"))
        await eventually(lambda: bool(decode.legs))
        decode.connector.notifies = False
        decode.behave(script=(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n",))
        asked.leave()
        await eventually(lambda: not inside.holds)
        assert inside.gateway.metrics.releases == 0
        assert inside.gateway.metrics.orphaned == {Orphaned.FAILED: 1}

    run("nixl_pull", script)


def test_a_gateway_that_stops_still_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is cut short, and what to release comes after that."""
    monkeypatch.setattr(prefill_leg, "LINGER", 10.0)
    monkeypatch.setattr(prefill_legs, "LAST", 20.0)

    async def main(pools: Pools) -> None:
        async def plays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await engine.left(reader)
            await asyncio.sleep(0.3)
            writer.write(whole(NIXL_ANSWER))

        engine = PrefillEngine(plays)
        async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
            tree = settings(pools) | {"health": UNASKED}
            port = server.sockets[0].getsockname()[1]
            tree["backends"][0]["url"] = f"http://127.0.0.1:{port}"
            async with serving(tree) as inside:
                asked = await inside.send(CHAT.path, body("stops"))
                await engine.asked.wait()
            asked.leave()
            assert inside.gateway.metrics.releases == 1

    with Pools("nixl_pull") as pools:
        asyncio.run(main(pools))
        [release] = pools.decodes[0].requests
        assert b"prefixgate-releases-a-prompt" in release.body
