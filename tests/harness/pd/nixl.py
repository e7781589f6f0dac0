"""vLLM's NIXL connectors: the decode engine pulls the blocks, or the prefill engine pushes them."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any

from tests.harness.behaviour import Behaviour
from tests.harness.pd.engine import PdEngine, differences, until, whole_answer
from tests.harness.pd.kv import Kv
from tests.harness.pd.leg import Leg, LoadFailed, Part, Refused, check_capped

SIDE_CHANNEL = 5600
"""Port, plus the rank; nothing listens there."""


class VllmConnector:
    """What vLLM's connectors have in common: `kv_transfer_params` in both legs."""

    name: str
    flat = False
    lease = 30.0
    notifies = True
    asks = frozenset({"do_remote_decode", "do_remote_prefill"})
    """Fields of a prefill leg's parameters that may have a value."""

    def start(self, engine: PdEngine) -> None:
        engine.owner = "vllm"
        engine.pages["/version"] = json.dumps({"version": engine.version}).encode()

    def part(self, engine: PdEngine, leg: Leg) -> Part:
        given = leg.body.get("kv_transfer_params")
        if given is None:
            return Part.WHOLE
        if not isinstance(given, dict):
            raise Refused("kv_transfer_params: Input should be a valid dictionary")
        match given.get("do_remote_decode"), given.get("do_remote_prefill"):
            case True, False | None:
                return Part.PREFILL
            case False | None, True:
                return Part.DECODE
        leg.complaints.append("kv_transfer_params that say neither prefill nor decode")
        return Part.WHOLE

    def check_prefill(self, engine: PdEngine, leg: Leg) -> None:
        check_capped(leg)
        for name, value in params(leg).items():
            leg.complain(name not in self.asks and value is not None, f"{name} is {value!r}")

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        raise NotImplementedError

    async def delivered(self, engine: PdEngine, leg: Leg) -> None:
        """The blocks stay after the answer."""

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        raise NotImplementedError


class NixlPull(VllmConnector):
    """Prefill first; what it answers goes to the decode engine as it is."""

    name = "nixl_pull"

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        answer = whole_answer(leg, how, "stop" if engine.first_token_stops else "length")
        rank = _rank(leg, engine)
        kind = "chatcmpl" if leg.path.endswith("/chat/completions") else "cmpl"
        name = f"{kind}-{leg.id}-{secrets.token_hex(4)}"
        given = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-leg.tokens // 16)))],
            "remote_engine_id": engine.engine_ids[rank],
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": SIDE_CHANNEL + rank,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": leg.tokens,
            "remote_blocks_expiry_time": None,
            "remote_registration_generation": 1,
            "transfer_mode": "pull",
            # Seen of vLLM 0.32: the decode engine tells its client this number, not its own.
            "remote_prefill_cached_tokens": how.cached_tokens,
        }
        leg.kv = engine.kv.hold(name, leg.prompt, leg.tokens, given)
        answer["kv_transfer_params"] = given
        return replace(how, body=json.dumps(answer).encode())

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        given = params(leg)
        prefill = engine.fabric.prefill(given.get("remote_engine_id"))
        kv = None if prefill is None else prefill.kv.find(str(given.get("remote_request_id")))
        if prefill is None or kv is None:
            raise LoadFailed("nobody gave out these kv_transfer_params")
        if wrong := differences(kv.params, given):
            raise LoadFailed(f"kv_transfer_params are not as given out: {', '.join(wrong)}")
        paired(engine, prefill, leg, kv)
        wanted = f"-{leg.id}-"
        leg.complain(wanted not in kv.key, f"x-request-id {leg.id} is not that of {kv.key}")
        return kv


class NixlPush(VllmConnector):
    """Both at once; the decode engine waits for blocks under the request's id."""

    name = "nixl_push"
    asks = VllmConnector.asks | {"transfer_id"}

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        leg.kv = engine.kv.hold(leg.id, leg.prompt, leg.tokens)
        return replace(how, body=json.dumps(whole_answer(leg, how)).encode())

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        given = params(leg)
        prefill = engine.fabric.prefill(given.get("remote_engine_id"))
        if prefill is None:
            raise LoadFailed(f"no engine {given.get('remote_engine_id')!r}")
        rank = prefill.engine_ids.index(given["remote_engine_id"])
        wanted = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": prefill.engine_ids[rank],
            "remote_host": "127.0.0.1",
            "remote_port": SIDE_CHANNEL + rank,
            "tp_size": 1,
            "pp_size": 1,
            "remote_request_id": leg.id,
        }
        shown = {name: value for name, value in given.items() if name != "transfer_id"}
        if wrong := differences(wanted, shown):
            raise LoadFailed(f"kv_transfer_params: {', '.join(wrong)}")
        return await arrival(engine, prefill, leg, leg.id)


def params(leg: Leg) -> dict[str, Any]:
    return dict(leg.body["kv_transfer_params"])


def paired(engine: PdEngine, prefill: PdEngine, leg: Leg, kv: Kv) -> None:
    """
    Raises:
        LoadFailed: the two cannot read from each other, or it is the cache of something else.
    """
    if engine.version != prefill.version:
        raise LoadFailed(f"version {prefill.version} is not {engine.version}")
    if kv.prompt != leg.prompt:
        raise LoadFailed("the two legs have different prompts or routes")


async def arrival(engine: PdEngine, prefill: PdEngine, leg: Leg, key: str) -> Kv:
    """Wait until the prefill engine has the blocks.

    Raises:
        LoadFailed: they do not come, or are not for this request.
    """
    if not await until(lambda: prefill.kv.find(key) is not None, engine.patience):
        raise LoadFailed(f"no blocks came within {engine.patience} s")
    kv = prefill.kv.find(key)
    assert kv is not None
    paired(engine, prefill, leg, kv)
    return kv


def _rank(leg: Leg, engine: PdEngine) -> int:
    return data_parallel_rank(leg, engine) or 0


def data_parallel_rank(leg: Leg, engine: PdEngine) -> int | None:
    """As the header pins it.

    Raises:
        Refused: there is no such rank.
    """
    given = leg.request.header(b"x-data-parallel-rank")
    if given is None or not given.isdigit():
        return None
    rank = int(given)
    if rank >= engine.dp_size:
        raise Refused(f"data_parallel_rank {rank} is out of range")
    return rank
