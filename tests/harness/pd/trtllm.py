"""TensorRT-LLM: the context engine's answer holds what the generation engine is to be given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.harness.behaviour import Behaviour
from tests.harness.pd.engine import PdEngine, differences, whole_answer
from tests.harness.pd.kv import Kv
from tests.harness.pd.leg import Leg, LoadFailed, Part, Refused, check_carried


class Trtllm:
    name = "trtllm"
    flat = True
    lease = 60.0
    notifies = False

    def start(self, engine: PdEngine) -> None:
        engine.owner = "tensorrt_llm"
        engine.pages["/version"] = json.dumps({"version": "1.2.0"}).encode()

    def part(self, engine: PdEngine, leg: Leg) -> Part:
        given = leg.body.get("disaggregated_params")
        if given is None:
            return Part.WHOLE
        if not leg.path.endswith(("/chat/completions", "/completions")):
            raise Refused("disaggregated_params are not known here")
        match given.get("request_type"):
            case "context_only":
                return Part.PREFILL
            case "generation_only":
                return Part.DECODE
        raise Refused(f"request_type {given.get('request_type')!r} is unknown")

    def check_prefill(self, engine: PdEngine, leg: Leg) -> None:
        check_carried(leg)
        leg.complain(leg.body.get("stream") is True, "it streams")
        given = leg.body["disaggregated_params"]
        number = given.get("disagg_request_id")
        if type(number) is not int:
            raise Refused(f"disagg_request_id {number!r} is no number")
        used = any(_number(each) == number for each in engine.legs if each is not leg)
        leg.complain(used, f"disagg_request_id {number} was used before")
        foreign = given.keys() - {"request_type", "disagg_request_id"}
        leg.complain(bool(foreign), f"disaggregated_params has {sorted(foreign)}")

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        number = _number(leg)
        reason = "stop" if engine.first_token_stops else "length"
        answer = whole_answer(leg, how, reason)
        given = {
            "request_type": "context_only",
            "first_gen_tokens": [7],
            "ctx_request_id": number,
            "encoded_opaque_state": f"state-{number}-{engine.port}",
            "draft_tokens": None,
            "disagg_request_id": number,
            "ctx_dp_rank": 0,
            "ctx_info_endpoint": f"tcp://127.0.0.1:{engine.port}",
        }
        for choice in answer["choices"]:
            choice["disaggregated_params"] = given
        answer["prompt_token_ids"] = _ids(leg)
        if not engine.first_token_stops:
            leg.kv = engine.kv.hold(
                str(given["encoded_opaque_state"]), leg.prompt, leg.tokens, given
            )
        return replace(how, body=json.dumps(answer).encode())

    async def delivered(self, engine: PdEngine, leg: Leg) -> None:
        """The blocks stay after the answer."""

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        given = leg.body["disaggregated_params"]
        state = str(given.get("encoded_opaque_state"))
        found = ((each, each.kv.find(state)) for each in engine.fabric.engines)
        prefill, kv = next(((each, kv) for each, kv in found if kv is not None), (None, None))
        if prefill is None or kv is None:
            raise LoadFailed("nobody gave out these disaggregated_params")
        if wrong := differences({**kv.params, "request_type": "generation_only"}, given):
            raise LoadFailed(f"disaggregated_params: {', '.join(wrong)}")
        half = next(each for each in prefill.legs if each.kv is kv)
        leg.complain(half.id != leg.id, f"x-request-id {leg.id} is not {half.id} of the other leg")
        field = "prompt_token_ids" if leg.path.endswith("/chat/completions") else "prompt"
        if half.path != leg.path or leg.body.get(field) != _ids(half):
            raise LoadFailed(f"{field} is not the prompt_token_ids that came with the parameters")
        return kv


def _number(leg: Leg) -> int | None:
    given = leg.body.get("disaggregated_params")
    return given.get("disagg_request_id") if isinstance(given, dict) else None


def _ids(leg: Leg) -> list[int]:
    """Stand for the prompt's tokens."""
    ids: list[Any] = [ord(character) for character in leg.prompt[: leg.tokens]]
    return ids
