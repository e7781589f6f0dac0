"""A prompt that waits at its prefill engine is let go after a time, and must not be read later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.disagg.nixl_pull import NixlPull
from gateway.fleet.upstream import Upstream
from tests.cases.pd import says
from tests.harness.inside import InsideGateway, eventually, serving
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import settings
from tests.harness.raw import Answer
from tests.harness.routes import CHAT, text

TEXT = "t0 t1 t2 t3 t4 "
LEASE = 0.2


def slow_to_connect(upstream: Upstream, times: int) -> None:
    """Connections take longer than the lease, so many of them."""
    dial, left = upstream.dial, [LEASE * 2] * times

    async def dawdle(limit: float) -> Any:
        await asyncio.sleep(left.pop() if left else 0.0)
        return await dial(limit)

    upstream.dial = dawdle
    upstream.idle = lambda: None


def served(monkeypatch: pytest.MonkeyPatch, pools: Pools, times: int) -> Answer:
    monkeypatch.setattr(NixlPull, "fetch_within", LEASE)
    pools.prefills[0].kv.lease = LEASE

    async def ask(inside: InsideGateway) -> Answer:
        [decode] = [each for each in inside.gateway.fleet if each.role == "decode"]
        slow_to_connect(inside.gateway.upstreams[decode.id], times)
        answer = await inside.ask(CHAT.path, CHAT.stream([text("late", 400)]))
        await eventually(lambda: not inside.holds)
        return answer

    async def run() -> Answer:
        tree = settings(pools) | {"health": {"probes": False, "load_interval": None}}
        for backend in tree["backends"]:
            backend["models"] = ["m"]
        async with serving(tree) as inside:
            return await ask(inside)

    return asyncio.run(run())


def test_what_is_too_old_is_prefilled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pools("nixl_pull") as pools:
        answer = served(monkeypatch, pools, 1)
        assert says(answer) == TEXT
        assert answer.header("x-prefixgate-handover") == "remote; worth"
        first, second = pools.prefills[0].parts(Part.PREFILL)
        [decode] = [leg for leg in pools.decodes[0].parts(Part.DECODE) if leg.kv is not None]
        assert first.id != second.id == decode.id
        assert pools.complaints == []


def test_where_it_is_always_too_old_the_decode_engine_prefills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Pools("nixl_pull") as pools:
        answer = served(monkeypatch, pools, 20)
        assert says(answer) == TEXT
        assert answer.header("x-prefixgate-handover") == "local; expired"
        assert [leg.part for leg in pools.decodes[0].legs if leg.kv is not None] == []
        assert pools.complaints == []
