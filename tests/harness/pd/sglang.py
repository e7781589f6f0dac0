"""SGLang: one body for both at once, which meet in a room of the prefill engine's."""

from __future__ import annotations

import json
from typing import Any

from gateway.types import Role
from tests.harness.behaviour import Behaviour
from tests.harness.fake_backend import FakeBackend
from tests.harness.pd.engine import PdEngine, differences, until
from tests.harness.pd.kv import Fate, Kv
from tests.harness.pd.leg import Leg, LoadFailed, Part, Refused, check_carried, prompts

ROOM_END = 1 << 63
OF_ONE_LEG = frozenset({"routed_dp_rank", "disagg_prefill_dp_rank", "stream", "stream_options"})
"""Fields in which the two bodies may differ: they have no part in what is computed."""
MEETING = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


class Sglang:
    """The bootstrap server is the engine's first companion; its pages are /health and /route."""

    name = "sglang"
    flat = True
    lease = 300.0
    notifies = False

    def start(self, engine: PdEngine) -> None:
        bootstrap = FakeBackend()
        engine.companions.append(bootstrap)
        engine.owner = "sglang"
        layout = {"page_size": 1, "kv_cache_dtype": "auto", "dp_size": engine.dp_size}
        info = {
            "disaggregation_mode": "null" if engine.role is Role.UNIFIED else engine.role,
            "disaggregation_bootstrap_port": bootstrap.port,
            "version": "0.5.23",
            "tp_size": 1,
            **layout,
        }
        engine.pages["/server_info"] = json.dumps(info).encode()
        route = {"attn_tp_size": 1, "pp_size": 1, "follow_bootstrap_room": True, **layout}
        route["prefill_http_port"] = engine.port
        bootstrap.pages["/route"] = json.dumps(route).encode()

    def part(self, engine: PdEngine, leg: Leg) -> Part:
        if engine.role is Role.UNIFIED:
            return Part.WHOLE
        rooms = _rooms(leg)
        if not rooms:
            raise Refused("Disaggregated request received without bootstrap room id")
        for room in rooms:
            if type(room) is not int or not 0 <= room < ROOM_END:
                raise Refused(f"bootstrap_room {room!r} is no room")
        taken = {room for each in engine.legs if each is not leg for room in _rooms(each)}
        if again := [room for room in rooms if room in taken]:
            leg.complaints.append(f"room {again[0]} was used before")
            raise Refused(f"bootstrap room {again[0]} is taken", 500)
        check_carried(leg, batches=True)
        if several := prompts(leg):
            wrong = any(_length(leg.body.get(name)) != several for name in MEETING)
            leg.complain(wrong, f"not one room for each of {several} prompts")
        return Part.PREFILL if engine.role is Role.PREFILL else Part.DECODE

    def check_prefill(self, engine: PdEngine, leg: Leg) -> None:
        leg.complaints += differences(_address(engine), _bootstrap(leg))
        rank = leg.body.get("routed_dp_rank")
        follows = _rooms(leg)[0] % engine.dp_size
        leg.complain(rank not in (None, follows), f"rank {rank} for a room of rank {follows}")

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        leg.kv = engine.kv.hold(_key(leg), leg.prompt, leg.tokens)
        return how

    async def delivered(self, engine: PdEngine, leg: Leg) -> None:
        kv = leg.kv
        assert kv is not None
        met = await until(lambda: kv.readers > 0 or kv.fate is not Fate.HELD, engine.patience)
        await until(lambda: kv.fate is not Fate.HELD, engine.patience if met else 0)
        if kv.fate is not Fate.READ:
            kv.end(Fate.EXPIRED)
            raise Refused("the decode engine did not come", 500)

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        host = _bootstrap(leg)
        prefill = next((each for each in engine.fabric.engines if _address(each) == host), None)
        if prefill is None:
            raise LoadFailed(f"no bootstrap server at {host}")
        room = _key(leg)
        if not await until(lambda: prefill.kv.find(room) is not None, engine.patience):
            raise LoadFailed(f"no blocks came within {engine.patience} s")
        half = next(each for each in prefill.legs if _key(each) == room)
        wrong = differences(_common(half.body), _common(leg.body))
        if half.path != leg.path or wrong:
            raise LoadFailed(f"the two legs differ: {half.path} {leg.path} {', '.join(wrong)}")
        leg.complain(half.id != leg.id, f"x-request-id {leg.id} is not {half.id} of the other leg")
        return prefill.kv.find(room)


def _rooms(leg: Leg) -> list[Any]:
    """One for each prompt."""
    given = leg.body.get("bootstrap_room")
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


def _key(leg: Leg) -> str:
    return str(_rooms(leg))


def _length(given: object) -> int:
    return len(given) if isinstance(given, list) else 1


def _bootstrap(leg: Leg) -> dict[str, Any]:
    """The server, which must be one and the same for all prompts."""
    found: dict[str, Any] = {}
    for name in MEETING[:2]:
        given = leg.body.get(name)
        same = isinstance(given, list) and bool(given) and given.count(given[0]) == len(given)
        found[name] = given[0] if isinstance(given, list) and same else given
    return found


def _address(engine: PdEngine) -> dict[str, Any]:
    if not engine.companions or engine.role is not Role.PREFILL:
        return {}
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": engine.companions[0].port}


def _common(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in OF_ONE_LEG}
