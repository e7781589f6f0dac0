"""Which half of a handover a request is, as its body says it in each protocol."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from gateway.types import Role
from loadtests.sim.calls import ApiError

Json = dict[str, Any]


class Protocol(StrEnum):
    NIXL_PULL = "nixl_pull"
    NIXL_PUSH = "nixl_push"
    MOONCAKE = "mooncake"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


NOTIFIES = frozenset({Protocol.NIXL_PULL, Protocol.NIXL_PUSH, Protocol.MOONCAKE})
"""A decode engine that gives a request up says so to the prefill engine."""


@dataclass(slots=True, frozen=True)
class Leg:
    """
    Attributes:
        key: under which the prefill engine keeps the blocks.
        source: the decode leg's: URL of the prefill engine.
        shown: the decode leg's: what it says of the blocks, which must be as it was given out.
        given: the prefill leg's: what the decode leg has to show.
        answer, choice: further members of the prefill leg's answer, and of its choices.
    """

    role: Role
    key: str
    source: str = ""
    shown: Json = field(default_factory=dict)
    given: Json = field(default_factory=dict)
    answer: Json = field(default_factory=dict)
    choice: Json = field(default_factory=dict)


class _Body(msgspec.Struct):
    kv_transfer_params: Json | None = None
    disaggregated_params: Json | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None


@dataclass(slots=True, frozen=True)
class LegReader:
    """
    Attributes:
        host, port: of this engine, for those who read from it.
    """

    protocol: Protocol
    role: Role
    host: str
    port: int

    @property
    def engine_id(self) -> str:
        return f"sim-{self.host}-{self.port}"

    def read(self, data: bytes, request_id: str, tokens: int) -> Leg | None:
        """
        Args:
            tokens: of the prompt.

        Returns:
            None for a request that is for one engine alone.

        Raises:
            ApiError: the body contradicts itself, or the engine's role.
        """
        try:
            body = msgspec.json.decode(data, type=_Body)
        except msgspec.ValidationError as error:
            raise ApiError(str(error), param=None) from None
        leg: Leg | None
        match self.protocol:
            case Protocol.SGLANG:
                leg = self._of_sglang(body)
            case Protocol.TRTLLM:
                leg = self._of_trtllm(body)
            case _:
                leg = self._of_vllm(body, request_id, tokens)
        if leg is not None and leg.role is not self.role:
            message = f"a {leg.role} leg was sent to a {self.role} engine"
            raise ApiError(message, param=None)
        return leg

    def _of_sglang(self, body: _Body) -> Leg:
        room = body.bootstrap_room
        if room is None:
            message = "Disaggregated request received without bootstrap room id"
            raise ApiError(message, param="bootstrap_room")
        key = str(room)
        if self.role is Role.PREFILL:
            return Leg(self.role, key)
        return Leg(self.role, key, f"http://{body.bootstrap_host}:{body.bootstrap_port}")

    def _of_trtllm(self, body: _Body) -> Leg | None:
        params = body.disaggregated_params
        if params is None:
            return None
        if params.get("request_type") == "generation_only":
            shown = params | {"request_type": "context_only"}
            key = str(params.get("encoded_opaque_state"))
            return Leg(Role.DECODE, key, str(params.get("ctx_info_endpoint")), shown)
        number = params.get("disagg_request_id")
        if params.get("request_type") != "context_only" or not isinstance(number, int):
            raise ApiError("disaggregated_params are wrong", param="disaggregated_params")
        given = {
            "request_type": "context_only",
            "first_gen_tokens": [0],
            "ctx_request_id": number,
            "encoded_opaque_state": secrets.token_hex(16),
            "draft_tokens": None,
            "disagg_request_id": number,
            "ctx_dp_rank": 0,
            "ctx_info_endpoint": f"http://{self.host}:{self.port}",
        }
        key = str(given["encoded_opaque_state"])
        return Leg(Role.PREFILL, key, given=given, choice={"disaggregated_params": given})

    def _of_vllm(self, body: _Body, request_id: str, tokens: int) -> Leg | None:
        params = body.kv_transfer_params
        if params is None:
            return None
        if params.get("do_remote_decode"):
            return self._prefill(params, request_id, tokens)
        if not params.get("do_remote_prefill"):
            return None
        if self.protocol is Protocol.MOONCAKE:
            key, source = params.get("transfer_id"), params.get("remote_bootstrap_addr")
            shown = {"remote_engine_id": params.get("remote_engine_id")}
            return Leg(Role.DECODE, str(key), str(source), shown)
        source = f"http://{params.get('remote_host')}:{params.get('remote_port')}"
        shown = params
        if self.protocol is Protocol.NIXL_PUSH:
            shown = {"remote_engine_id": params.get("remote_engine_id")}
        return Leg(Role.DECODE, str(params.get("remote_request_id")), source, shown)

    def _prefill(self, params: Json, request_id: str, tokens: int) -> Leg | None:
        given: Json = {"remote_engine_id": self.engine_id}
        if self.protocol is Protocol.MOONCAKE:
            transfer = params.get("transfer_id")
            return Leg(Role.PREFILL, str(transfer), given=given) if transfer else None
        if self.protocol is Protocol.NIXL_PUSH:
            return Leg(Role.PREFILL, request_id, given=given)
        key = f"cmpl-{request_id}-0-{secrets.token_hex(4)}"
        given = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-tokens // 16)))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": key,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "remote_registration_generation": 1,
            "transfer_mode": "pull",
        }
        return Leg(Role.PREFILL, key, given=given, answer={"kv_transfer_params": given})
