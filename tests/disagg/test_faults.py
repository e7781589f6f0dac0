"""Every case of docs/handover-faults.md, with real sockets; those of one protocol side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.types import Role
from tests.disagg.faults import LEGS, PRODUCT, Cell, cells, rows
from tests.harness.behaviour import Behaviour, Cut
from tests.harness.inside import InsideGateway, eventually, serving
from tests.harness.pd.engine import PdEngine
from tests.harness.pd.kv import Fate
from tests.harness.pd.leg import Leg
from tests.harness.pd.pools import Pools
from tests.harness.pd.reference import PROTOCOLS
from tests.harness.pd.settings import entry
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, text

TEXT = "t0 t1 t2 t3 t4 "
SOON = 3.0
"""Where the table says one second; what is under way would go on for far longer."""
MUTE = ("nixl_push", "trtllm")
"""Protocols in which nobody can be told to let go."""


def test_done4_the_table_is_complete() -> None:
    table = rows()
    for case in PRODUCT:
        assert len([row for row in table if row.covers(*case)]) == 1, case
    covered = {id(row) for row in table for case in PRODUCT if row.covers(*case)}
    assert covered == {id(row) for row in table}


class Site:
    """A gateway and the engines of one protocol, where each case has addresses of its own."""

    def __init__(self, pools: Pools, inside: InsideGateway) -> None:
        self.pools = pools
        self.inside = inside

    def engine(self, leg: str) -> PdEngine:
        return (self.pools.prefills if leg == "prefill" else self.pools.decodes)[0]

    def legs(self, cell: Cell, leg: str) -> list[Leg]:
        found = self.engine(leg).legs
        return [each for each in found if each.path.startswith(f"/{cell.name}/")]

    def backend(self, cell: Cell, leg: str) -> Any:
        url = f"{self.engine(leg).url}/{cell.name}"
        return next(each for each in self.inside.gateway.fleet if each.address.url == url)

    @property
    def orphaned(self) -> int:
        return sum(self.inside.gateway.metrics.orphaned.values())


async def play(site: Site, cell: Cell) -> None:
    inside = site.inside
    asked = await inside.send(CHAT.path, CHAT.stream([text(cell.name, 400)]) | {"model": cell.name})
    await eventually(lambda: under_way(site, cell))
    since = time.monotonic()
    if cell.leaves:
        asked.leave()
        await over(site, cell, since)
        cell.gate.set()
    else:
        if cell.tail and cell.fault == "reset":
            [prefill] = site.legs(cell, "prefill")
            site.engine("prefill").drop(Cut.RST, prefill.request)
        cell.gate.set()
        answer = await asked.whole()
        seen = "error" if answer.status == 200 and answer.stream.errors else str(answer.status)
        assert seen == cell.expected.outcome
        if seen == "200":
            assert answer.stream.text == TEXT
            assert answer.stream.done
            told = answer.header("x-prefixgate-handover")
            fallback = cell.expected.fallback
            assert told == (f"local; {fallback}" if fallback else "remote; worth") or (
                cell.protocol == "sglang"
            )
        ended = time.monotonic()
        await over(site, cell, ended)
    await eventually(lambda: inside.live(cell.name) is None, SOON)
    assert blamed(site, cell) == ("nobody" if cell.leaves else cell.expected.blamed)


def under_way(site: Site, cell: Cell) -> bool:
    """It has come to where the fault is due."""
    if cell.leg == "decode" and not cell.leaves:
        return True  # it comes by itself
    if cell.when == "after":
        context = site.inside.live(cell.name)
        return context is not None and context.relay is not None and context.relay.status == 200
    if cell.leg == "decode" or cell.concurrent:
        return all(site.legs(cell, leg) for leg in LEGS)
    return bool(site.legs(cell, "prefill"))


async def over(site: Site, cell: Cell, since: float) -> None:
    """Wait for the end of all legs: within a second it is there."""

    def running() -> list[Leg]:
        legs = {leg: site.legs(cell, leg) for leg in LEGS}
        if cell.fault == "reset" and not cell.leaves:
            del legs[cell.leg][0]  # the engine itself has ended it
        return [each for found in legs.values() for each in found if not each.over]

    await eventually(lambda: not running(), SOON - (time.monotonic() - since))


def blamed(site: Site, cell: Cell) -> str:
    for leg in LEGS:
        backend = site.backend(cell, leg)
        if backend.breaker.failures:
            return leg
        if backend.busy is not None:
            return f"{leg} avoided"
    return "nobody"


def rule(all_cells: dict[str, Cell], role: Role) -> Callable[[Recorded], Behaviour | None]:
    def behaviour(request: Recorded) -> Behaviour | None:
        return all_cells[request.path.split("/")[1]].behaviour(role, request)

    return behaviour


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_done4_every_way_for_a_leg_to_fail(protocol: str) -> None:
    named = {cell.name: cell for cell in cells(protocol)}
    with Pools(protocol) as pools:
        backends = []
        for engine in pools.engines:
            engine.models = tuple(named)
            engine.rule = rule(named, engine.role)
            own = entry(engine)
            backends += [{**own, "url": f"{engine.url}/{name}", "models": [name]} for name in named]
        for engine in pools.prefills:
            engine.spoil = lambda body: body + b" " * len(body)
        asyncio.run(run(pools, backends, named))


async def run(pools: Pools, backends: list[dict[str, Any]], named: dict[str, Cell]) -> None:
    tree = {
        "backends": backends,
        "disagg": {"connector": pools.protocol, "min_uncached_tokens": 0},
        "health": {"probes": False, "load_interval": None},
        "breaker": {"failures": 1000, "share": 1.0},
        "backpressure": {"avoid": 60.0},
        "timeouts": {"first_byte": 1.5, "prefill_first_byte": 0.75},
    }
    async with serving(tree) as inside:
        site = Site(pools, inside)
        before = asyncio.all_tasks()
        ended = await asyncio.gather(
            *(play(site, cell) for cell in named.values()), return_exceptions=True
        )
        failed = [
            f"{name}: {error!r}"
            for name, error in zip(named, ended, strict=True)
            if error is not None
        ]
        assert not failed, "\n".join(failed)
        await eventually(lambda: not inside.holds)
        await eventually(lambda: asyncio.all_tasks() == before)
        kept = [kv for engine in pools.engines for kv in engine.kv.entries if kv.fate is Fate.HELD]
        assert len(kept) <= site.orphaned
        assert not kept or pools.protocol in MUTE
    assert pools.complaints == []
