"""vLLM's NixlPushConnector: both legs at once. The decode engine registers its blocks at the
prefill engine, which writes into them."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.connector import Connector, Leg, Pairing, Release, Side
from gateway.disagg.vllm import ASKED, Vllm, decode_leg, engine_id, nixl_mismatch, prefill_leg

SIDE_CHANNEL_PORT = 5600


class NixlPush(Vllm):
    name: ClassVar[ConnectorName] = ConnectorName.NIXL_PUSH
    concurrent: ClassVar[bool] = True
    overlaps: ClassVar[bool] = False

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        if not prefill.engine_id:
            return "the prefill engine's engine_id is not known"
        return super().mismatch(prefill, decode) or nixl_mismatch(prefill, decode)

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        params = {**ASKED, "transfer_id": pairing.transfer_id}
        return prefill_leg(body, pairing, params, ranked=True)

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        side, rank = pairing.prefill, pairing.prefill_rank
        params = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": engine_id(side, rank),
            "remote_host": side.side_channel_host or side.host,
            "remote_port": (side.side_channel_port or SIDE_CHANNEL_PORT) + rank,
            "tp_size": side.tp_size,
            "pp_size": side.pp_size,
            "remote_request_id": pairing.id,
            "transfer_id": pairing.transfer_id,
        }
        return decode_leg(body, pairing, msgspec.json.encode(params))

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        return None


NIXL_PUSH: Connector = NixlPush()
