"""vLLM's Mooncake connector: both legs at once, engines known from a registry over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.harness.behaviour import Behaviour
from tests.harness.fake_backend import FakeBackend
from tests.harness.pd.engine import PdEngine, differences, whole_answer
from tests.harness.pd.kv import Kv
from tests.harness.pd.leg import Leg, LoadFailed
from tests.harness.pd.nixl import VllmConnector, arrival, data_parallel_rank, params


class Mooncake(VllmConnector):
    """The registry is the engine's first companion; /query is its page."""

    name = "mooncake"
    lease = 480.0
    asks = VllmConnector.asks | {"transfer_id"}

    def start(self, engine: PdEngine) -> None:
        super().start(engine)
        registry = FakeBackend()
        engine.companions.append(registry)
        ranks = {
            str(rank): {
                "engine_id": engine_id,
                "worker_addr": {"0": {"0": f"127.0.0.1:{40001 + rank}"}},
            }
            for rank, engine_id in enumerate(engine.engine_ids)
        }
        registry.pages["/query"] = json.dumps(ranks).encode()

    def check_prefill(self, engine: PdEngine, leg: Leg) -> None:
        super().check_prefill(engine, leg)
        transfer = params(leg).get("transfer_id")
        leg.complain(not transfer, "no transfer_id: nothing is kept")
        used = any(_transfer(each) == transfer for each in engine.legs if each is not leg)
        leg.complain(bool(transfer) and used, f"transfer_id {transfer} was used before")
        rank = data_parallel_rank(leg, engine)
        leg.complain(engine.dp_size > 1 and rank is None, "no x-data-parallel-rank")

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        body = leg.body
        runs_on = body.get("ignore_eos") is True and not body.get("stop")
        stopped = engine.first_token_stops and not (runs_on and not body.get("stop_token_ids"))
        if stopped:
            leg.complaints.append("it stopped at its first token, which drops the transfer")
        elif transfer := params(leg).get("transfer_id"):
            leg.kv = engine.kv.hold(str(transfer), leg.prompt, leg.tokens)
        answer = whole_answer(leg, how, "stop" if stopped else "length")
        return replace(how, body=json.dumps(answer).encode())

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        given = params(leg)
        prefill = engine.fabric.prefill(given.get("remote_engine_id"))
        if prefill is None:
            raise LoadFailed(f"no engine {given.get('remote_engine_id')!r}")
        wanted = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": prefill.companions[0].url,
            "remote_engine_id": given["remote_engine_id"],
            "transfer_id": given.get("transfer_id"),
        }
        if wrong := differences(wanted, given):
            raise LoadFailed(f"kv_transfer_params: {', '.join(wrong)}")
        transfer = str(given.get("transfer_id"))
        kv = await arrival(engine, prefill, leg, transfer)
        half = next(each for each in prefill.legs if each.kv is kv)
        leg.complain(half.id != leg.id, f"x-request-id {leg.id} is not {half.id} of the other leg")
        rank = data_parallel_rank(half, prefill) or 0
        wrong_rank = prefill.engine_ids[rank] != given["remote_engine_id"]
        leg.complain(wrong_rank, f"the prefill leg went to rank {rank}")
        return kv


def _transfer(leg: Leg) -> object:
    given = leg.body.get("kv_transfer_params")
    return given.get("transfer_id") if isinstance(given, dict) else None
