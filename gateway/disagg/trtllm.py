"""TensorRT-LLM: the context leg answers with an opaque state and the prompt's token ids, and the
generation leg takes both. An answer that ends with its first token is complete by then."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.bodies import carried, unstreamed
from gateway.disagg.connector import Connector, Leg, NoTransfer, Pairing, Release, Side
from gateway.disagg.members import Members
from gateway.disagg.refusal import Refusal, refusal
from gateway.disagg.route import Route
from gateway.disagg.sides import cache_mismatch

PARAMS = "disaggregated_params"
_IDS = "prompt_token_ids"
_GOES_ON = frozenset({"length", "not_finished"})
_PROMPTS = {Route.CHAT: _IDS, Route.COMPLETIONS: "prompt"}
"""By route that the protocol carries, the member for token ids."""


class _Answer(msgspec.Struct, gc=False):
    choices: list[msgspec.Raw]
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")


class _Choice(msgspec.Struct, gc=False):
    finish_reason: Any = None
    disaggregated_params: msgspec.Raw = msgspec.Raw(b"null")


class _Params(msgspec.Struct, gc=False):
    """What a generation leg cannot do without; it is passed on as it came."""

    ctx_request_id: int | None = None
    disagg_request_id: int | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_choice = msgspec.json.Decoder(_Choice).decode
_decode_params = msgspec.json.Decoder(_Params).decode


class Trtllm:
    name: ClassVar[ConnectorName] = ConnectorName.TRTLLM
    concurrent: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    sees_to_it: ClassVar[bool] = False
    alone: ClassVar[bool] = True
    waits: ClassVar[bool] = False
    fetch_within: ClassVar[float | None] = None

    def refuses(self, body: bytes, route: Route) -> Refusal | None:
        return refusal(body) if route in _PROMPTS else Refusal.ROUTE

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        return cache_mismatch(prefill, decode)

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        params = {"request_type": "context_only", "disagg_request_id": pairing.room}
        return Leg(unstreamed(body, {PARAMS: msgspec.json.encode(params)}), pairing.headers())

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        if answer is None:
            raise NoTransfer("no answer from the prefill engine")
        try:
            read = _decode_answer(answer)
            [choice] = read.choices
            found = _decode_choice(choice)
        except (ValueError, RecursionError):
            why = "the prefill engine's answer is not one with one choice"
            raise NoTransfer(why, held=True) from None
        if found.finish_reason not in _GOES_ON:
            return _whole(body, answer, bytes(choice))
        values = {PARAMS: _generation(bytes(found.disaggregated_params))}
        ids = bytes(read.prompt_token_ids)
        if ids != b"null":
            values[_PROMPTS[pairing.route]] = ids
        return Leg(carried(body, values), pairing.headers())

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        return None


def _generation(params: bytes) -> bytes:
    if params == b"null":
        raise NoTransfer("no disaggregated_params in the prefill engine's answer")
    try:
        known = _decode_params(params)
    except (ValueError, RecursionError):
        why = "malformed disaggregated_params in the prefill engine's answer"
        raise NoTransfer(why, held=True) from None
    if known.ctx_request_id is None and known.disagg_request_id is None:
        why = "disaggregated_params without an id in the prefill engine's answer"
        raise NoTransfer(why, held=True)
    return Members(params).edited({"request_type": b'"generation_only"'})


def _whole(body: bytes, answer: bytes, choice: bytes) -> Leg:
    if Members(body).get("stream") == b"true":
        raise NoTransfer("the answer ended with its first token, and a stream was asked for")
    members = Members(answer)
    choices = members.get("choices")
    assert choices is not None  # it was read before
    # Within its array an element is the first place where its own text is.
    plain = choices.replace(choice, Members(choice).edited({}, {PARAMS}), 1)
    return Leg(members.edited({"choices": plain}, {_IDS}), final=True)


TRTLLM: Connector = Trtllm()
