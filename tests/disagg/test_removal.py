"""Engines that are removed while requests wait for them, or are under way there."""

from __future__ import annotations

import asyncio
import json
from threading import Event
from typing import Any

import httpx
import pytest

from tests.disagg.faults import COMMENT, STREAM_HEAD
from tests.harness.inside import InsideGateway, eventually, serving
from tests.harness.pd.engine import PdEngine
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import entry
from tests.harness.routes import CHAT, text

UNASKED = {"probes": False, "load_interval": None}
ERROR = b"data: " + json.dumps({"error": {"message": "it failed", "code": 500}}).encode() + b"\n\n"
FAILED = b"%x\r\n%b\r\n" % (len(ERROR), ERROR)


def settings(pools: Pools, **sections: Any) -> dict[str, Any]:
    disagg = {"connector": pools.protocol, **sections.pop("disagg", {})}
    return {"backends": [entry(engine) for engine in pools.engines], "disagg": disagg, **sections}


def id_of(inside: InsideGateway, engine: PdEngine) -> str:
    return next(each.id for each in inside.gateway.fleet if each.address.url == engine.url)


async def remove(inside: InsideGateway, engine: PdEngine) -> int:
    transport = httpx.ASGITransport(inside.gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        answer = await http.delete(f"/admin/v1/backends/{id_of(inside, engine)}")
    return answer.status_code


def chat(name: str, **extra: Any) -> dict[str, Any]:
    return {**CHAT.stream([text(name, 400)]), **extra}


@pytest.mark.parametrize("protocol", ["nixl_pull", "shared_store"])
def test_room_that_comes_free_as_an_engine_is_removed_is_nobodys(protocol: str) -> None:
    """Its load is forgotten, and with it what kept requests from it."""

    async def run(pools: Pools) -> None:
        async with serving(settings(pools, health={"load_interval": 0.05})) as inside:
            loads = inside.gateway.loads
            await eventually(lambda: [load.is_full(0.95) for load in loads.values()] == [True] * 3)
            asked = [await inside.send(CHAT.path, chat(f"waits {number}")) for number in range(4)]
            pool = inside.gateway.pools.get("m")
            assert pool is not None
            await eventually(lambda: pool.snapshot().unplaced == 4)
            assert await remove(inside, pools.decodes[0]) == 204
            for engine in (*pools.prefills, pools.decodes[1]):
                engine.tells()
            assert [(await each.whole()).status for each in asked] == [200] * 4
            await eventually(lambda: not inside.holds)
        assert pools.decodes[0].legs == []

    with Pools(protocol, decodes=2) as pools:
        for engine in pools.engines:
            engine.tells(running=1, kv_use=0.99)
        asyncio.run(run(pools))


def test_an_engine_that_is_removed_just_as_a_request_was_granted_it() -> None:
    async def run(pools: Pools) -> None:
        limits = {"max_requests": 1}
        scheduling = {"prefill": limits, "decode": limits, "gate": None}
        async with serving(settings(pools, scheduling=scheduling, health=UNASKED)) as inside:
            gateway, decode = inside.gateway, pools.decodes[0]
            first = [await inside.send(CHAT.path, chat(f"first {each}")) for each in range(2)]
            await eventually(lambda: all(len(engine.legs) == 1 for engine in pools.engines))
            id = id_of(inside, decode)
            [there] = [each for each in gateway.proxy.live.values() if each.record.backend == id]
            second = await inside.send(CHAT.path, chat("second"))
            await eventually(lambda: any(each.waiting for each in gateway.proxy.live.values()))
            assert there.lease is not None
            there.lease.release()
            gateway.fleet.remove(id)
            go_on.set()
            answers = [await each.whole() for each in (*first, second)]
            assert [answer.status for answer in answers] == [200] * 3
            assert len(decode.legs) == 1
            await eventually(lambda: not inside.holds)

    go_on = Event()
    with Pools("nixl_pull") as pools:
        for engine in pools.engines:
            engine.behave(until=go_on)
        asyncio.run(run(pools))


def test_what_an_engine_fails_after_its_removal_goes_on_in_the_same_answer() -> None:
    """Comments are out when it says in the stream that it failed."""

    async def run(pools: Pools) -> None:
        tree = settings(pools, disagg={"min_uncached_tokens": 0}, health=UNASKED)
        async with serving(tree) as inside:
            asked = await inside.send(CHAT.path, chat("gone"))
            await asked.until(lambda answer: b":" in answer.body)
            [at] = [engine for engine in pools.decodes if engine.legs]
            for engine in pools.decodes:
                engine.behave()
            assert await remove(inside, at) == 204
            answer = await asked.whole()
            assert answer.status == 200
            assert answer.stream.text == "t0 t1 t2 t3 t4 "
            assert answer.stream.done
            await eventually(lambda: not inside.holds)
        assert len(at.legs) == 1

    with Pools("nixl_pull", decodes=2) as pools:
        for engine in pools.decodes:
            engine.behave(script=(STREAM_HEAD, COMMENT, 1.0, FAILED, b"0\r\n\r\n"))
        asyncio.run(run(pools))
