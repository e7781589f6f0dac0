"""What vLLM's protocols have in common: members called kv_transfer_params, and a prefill engine
that does not know that it is one."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from gateway.disagg.bodies import CAPPED, carried, one_token
from gateway.disagg.connector import Leg, Pairing, Release, Side
from gateway.disagg.refusal import Refusal, refusal
from gateway.disagg.route import Route
from gateway.disagg.sides import cache_mismatch

PARAMS = "kv_transfer_params"
ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Parameters of a prefill leg over NIXL."""
_WITHOUT = frozenset({"request_id"})
"""The header on both legs holds in its place; what releases a prompt would go by the body's."""
_NOBODY = "prefixgate-releases-a-prompt"
"""No model of that name is served, so that nothing comes to be computed."""


class Vllm:
    """Base of the protocols."""

    holds: ClassVar[bool] = True
    fetch_within: ClassVar[float | None] = None
    sees_to_it: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    waits: ClassVar[bool] = False

    def refuses(self, body: bytes, route: Route) -> Refusal | None:
        return refusal(body) if route in CAPPED else Refusal.ROUTE

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        return cache_mismatch(prefill, decode)


def prefill_leg(
    body: bytes,
    pairing: Pairing,
    params: dict[str, Any],
    extra: dict[str, bytes] | None = None,
    *,
    ranked: bool = False,
) -> Leg:
    """Args:
    params: for the prefill engine.
    extra: further members.
    ranked: the engine is told which of its data-parallel ranks computes the prompt.
    """
    values = {**(extra or {}), PARAMS: msgspec.json.encode(params)}
    headers = pairing.headers()
    if ranked and pairing.prefill.dp_size > 1:
        headers += ((b"x-data-parallel-rank", b"%d" % pairing.prefill_rank),)
    return Leg(one_token(body, pairing.route, values, _WITHOUT), headers)


def decode_leg(body: bytes, pairing: Pairing, params: bytes) -> Leg:
    """Args:
    params: for the decode engine, JSON.
    """
    return Leg(carried(body, {PARAMS: params}, _WITHOUT), pairing.headers())


def rejected(pairing: Pairing, params: bytes) -> Release:
    """A request that the decode engine refuses, upon which it tells the prefill engine that nobody
    will fetch the prompt.

    Args:
        params: those of the decode leg, JSON.
    """
    body = b'{"model":"%b","prompt":"-","max_tokens":1,"%b":%b}'
    return Release(
        to_decode=True,
        path="/v1/completions",
        body=body % (_NOBODY.encode(), PARAMS.encode(), params),
        headers=pairing.headers(),
    )


def engine_id(prefill: Side, rank: int) -> str:
    """What one data-parallel rank is called, where not each has told its own name."""
    return f"{prefill.engine_id}_dp{rank}" if prefill.dp_size > 1 else prefill.engine_id


def nixl_mismatch(prefill: Side, decode: Side) -> str | None:
    """What NIXL's handshake would stumble over."""
    if prefill.version and decode.version and prefill.version != decode.version:
        return f"version {prefill.version}, and {decode.version}"
    small, large = sorted((prefill.tp_size, decode.tp_size))
    if large % small:
        return f"{prefill.tp_size} tensor-parallel ranks, and {decode.tp_size}"
    return None
