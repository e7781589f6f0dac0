"""No request fails because the prefill pool is down, slow or full."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from gateway.disagg import release
from gateway.fleet.backend import BackendState
from tests.cases.pd import Site, says
from tests.harness.behaviour import Behaviour
from tests.harness.fake_backend import Health
from tests.harness.gateway_process import free_port
from tests.harness.inside import InsideGateway, eventually, serving
from tests.harness.pd.faults import JSON_HEAD
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.reference import PROTOCOLS
from tests.harness.pd.settings import entry
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, text
from tests.process.full_listener import FullListener

TEXT = "t0 t1 t2 t3 t4 "
MOST_SECONDS = 15.0
"""That a request may take: no state ends by itself, and the limits below add up to less."""
ANSWERS = {
    "hanging": Behaviour(hang=True),
    "slow": Behaviour(ttft=3600.0),
    "dawdling": Behaviour(script=(JSON_HEAD, 3600.0)),
    "broken": Behaviour(status=500),
    "limited": Behaviour(status=429),
    "overloaded": Behaviour(status=503),
}
UNREACHABLE = ("refusing", "blackholed")
OUT = ("draining", "removed")
STATES = (*ANSWERS, *UNREACHABLE, *OUT)
LIMITS = {
    "health": {"probes": False, "load_interval": None},
    "timeouts": {"connect": 1.0, "first_byte": 2.0, "prefill_first_byte": 0.6, "idle": 0.6},
}


def behaviour(request: Recorded) -> Behaviour | None:
    return ANSWERS.get(request.path.split("/")[1])


def backends(pools: Pools, places: dict[str, str]) -> list[dict[str, Any]]:
    """Engines of each state, with a model of their own.

    Args:
        places: URLs of prefill engines, by state, where they are not the fake's.
    """
    return [
        {**entry(engine), "url": f"{place}/{state}", "models": [state]}
        for state in STATES
        for engine in pools.engines
        for place in [places.get(state, engine.url) if engine in pools.prefills else engine.url]
    ]


async def ask(inside: InsideGateway, state: str, number: int, size: int) -> None:
    body = CHAT.stream if number % 2 else CHAT.body
    asked = {**body([text(f"{state} {number}", size)]), "model": state}
    began = time.monotonic()
    answer = await inside.ask(CHAT.path, asked)
    assert says(answer) == TEXT, state
    assert time.monotonic() - began < MOST_SECONDS, state


async def take_out(inside: InsideGateway) -> None:
    gateway = inside.gateway
    transport = httpx.ASGITransport(gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        for backend in [each for each in gateway.fleet if each.role == "prefill"]:
            url = f"/admin/v1/backends/{backend.id}"
            if backend.models[0] == "draining":
                (await http.post(f"{url}/drain")).raise_for_status()
            elif backend.models[0] == "removed":
                (await http.delete(url)).raise_for_status()


@pytest.mark.parametrize("least", [0, None], ids=["all", "worth"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_done5_requests_are_served_without_the_prefill_pool(
    monkeypatch: pytest.MonkeyPatch, protocol: str, least: int | None
) -> None:
    """By the decode engine, or where that serves nothing alone by a unified one."""
    # An engine that hangs does not answer what is to release its prompts either.
    monkeypatch.setattr(release, "LIMITS", release.LIMITS._replace(first_byte=0.5, total=0.5))
    with ExitStack() as stack:
        pools = stack.enter_context(Pools(protocol, unified=protocol == "sglang"))
        for engine in pools.engines:
            engine.models = STATES
        for engine in pools.prefills:
            engine.rule = behaviour
        full = free_port()
        stack.enter_context(FullListener(full))
        places = {"blackholed": full, "refusing": free_port()}
        urls = {state: f"http://127.0.0.1:{port}" for state, port in places.items()}
        disagg = {"connector": protocol, "min_uncached_tokens": least}
        asyncio.run(pressed({**LIMITS, "backends": backends(pools, urls), "disagg": disagg}))


async def pressed(tree: dict[str, Any]) -> None:
    states, size = list(STATES), 400
    if tree["disagg"]["min_uncached_tokens"] is None:
        size = 100_000  # short ones would not be worth a handover
        # A prefill engine may serve whole requests then, and no answer that has begun is repeated.
        states.remove("dawdling")
    async with serving(tree) as inside:
        await take_out(inside)
        for wave in range(2):
            async with asyncio.TaskGroup() as group:
                for state in states:
                    for number in range(6):
                        group.create_task(ask(inside, state, 10 * wave + number, size))
        await eventually(lambda: not inside.holds)
        for backend in inside.gateway.fleet:
            down = backend.role == "prefill" and backend.models[0] in UNREACHABLE
            if down and size == 400:
                assert backend.state is BackendState.EJECTED


@pytest.mark.parametrize("protocol", [each for each in PROTOCOLS if each != "sglang"])
def test_done5_a_pool_that_is_full_or_not_ready(protocol: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(
            stack,
            tmp_path,
            protocol,
            pools={"decodes": 2},
            scheduling={"prefill": {"max_requests": 1}},
            health={"interval": 0.2},
        )
        site.prefill.behave(ttft=60.0)
        with site.gw.client() as first:
            first.request(CHAT.path, site.body(stream=True))
            site.prefill.wait(lambda: bool(site.legs(Part.PREFILL)))
            for number in range(6):
                assert says(site.ask(site.body(stream=bool(number % 2)))) == TEXT
            assert len(site.legs(Part.PREFILL)) == 1
        site.gw.settles_idle()
        site.prefill.health = Health.UNAVAILABLE
        up = "prefixgate_backend_up"
        site.gw.settles(lambda now: now.total(up) == len(site.pools.engines) - 1, 10.0)
        for number in range(6):
            assert says(site.ask(site.body(stream=bool(number % 2)))) == TEXT
        assert len(site.legs(Part.PREFILL)) == 1


def test_done5_who_can_serve_nothing_alone_waits_for_a_full_pool(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scheduling = {"prefill": {"max_requests": 2}}
        site = Site(stack, tmp_path, "sglang", pools={"decodes": 4}, scheduling=scheduling)
        free = Event()
        site.prefill.behave(until=free)
        clients = [stack.enter_context(site.gw.client()) for _ in range(12)]
        for number, client in enumerate(clients):
            client.request(CHAT.path, site.body(stream=bool(number % 2)))
        site.prefill.wait(lambda: len(site.legs(Part.PREFILL)) > 2)
        free.set()
        assert [says(client.answer()) for client in clients] == [TEXT] * 12
        assert site.pools.complaints == []


@pytest.mark.parametrize("way", ["draining", "removed", "unready"])
def test_done5_who_can_serve_nothing_alone_says_so(tmp_path: Path, way: str) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path, "sglang", health={"interval": 0.2})
        url = f"/backends/{site.gw.backend_id(site.prefill.url)}"
        match way:
            case "draining":
                site.gw.admin("POST", f"{url}/drain")
            case "removed":
                site.gw.admin("DELETE", url)
            case "unready":
                site.prefill.health = Health.UNAVAILABLE
                site.gw.settles(lambda now: now.total("prefixgate_backend_up") == 1, 10.0)
        for streams in (True, False):
            answer = site.ask(site.body(stream=streams))
            assert answer.status == 503
            assert answer.header("retry-after")
            assert answer.json["error"]["message"]
