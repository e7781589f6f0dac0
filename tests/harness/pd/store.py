"""A store that all engines share: what one has computed, any other can load."""

from __future__ import annotations

import json
from dataclasses import replace

from gateway.types import Role
from tests.harness.behaviour import Behaviour
from tests.harness.pd.engine import PdEngine, whole_answer
from tests.harness.pd.kv import Kv
from tests.harness.pd.leg import Leg, Part, check_capped


class SharedStore:
    name = "shared_store"
    flat = False
    lease = 1e9
    notifies = False

    def start(self, engine: PdEngine) -> None:
        engine.owner = "vllm"
        engine.pages["/version"] = json.dumps({"version": engine.version}).encode()

    def part(self, engine: PdEngine, leg: Leg) -> Part:
        leg.complain(leg.body.get("kv_transfer_params") is not None, "it has kv_transfer_params")
        if engine.role is Role.PREFILL and 1 in leg.limits.values():
            return Part.PREFILL
        if engine.role is Role.DECODE and leg.prompt in engine.fabric.store:
            return Part.DECODE
        return Part.WHOLE

    def check_prefill(self, engine: PdEngine, leg: Leg) -> None:
        check_capped(leg)

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        engine.fabric.store[leg.prompt] = leg.tokens
        return replace(how, body=json.dumps(whole_answer(leg, how)).encode())

    async def delivered(self, engine: PdEngine, leg: Leg) -> None:
        """Nothing is kept for anybody."""

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        tokens = engine.fabric.store[leg.prompt]
        return engine.kv.hold(leg.id, leg.prompt, tokens)
