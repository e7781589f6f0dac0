"""vLLM's MooncakeConnector: both legs at once, which find each other by a transfer's id through the
prefill engine's bootstrap server.

That server tells each rank's engine id (GET /query), see `gateway.disagg.bootstrap`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.connector import Connector, Leg, Pairing, Release, Side
from gateway.disagg.vllm import Vllm, decode_leg, engine_id, prefill_leg, rejected

BOOTSTRAP_PORT = 8998
QUERY = "/query"
_TO_THE_CAP = {"ignore_eos": b"true"}
"""A prompt whose first token ends the answer would be let go at once: only one that runs into its
cap is kept for the decode engine."""


class Mooncake(Vllm):
    name: ClassVar[ConnectorName] = ConnectorName.MOONCAKE
    concurrent: ClassVar[bool] = True
    overlaps: ClassVar[bool] = False

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        if not prefill.engine_id and len(prefill.engine_ids) < prefill.dp_size:
            return "the prefill engine's engine_id is not known"
        return super().mismatch(prefill, decode)

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        params = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": pairing.transfer_id,
        }
        return prefill_leg(body, pairing, params, _TO_THE_CAP, ranked=True)

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        return decode_leg(body, pairing, _params(pairing))

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        return rejected(pairing, _params(pairing))


def _params(pairing: Pairing) -> bytes:
    side, rank = pairing.prefill, pairing.prefill_rank
    return msgspec.json.encode(
        {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": bootstrap_url(side),
            "remote_engine_id": _engine_id(side, rank),
            "transfer_id": pairing.transfer_id,
        }
    )


def bootstrap_url(prefill: Side) -> str:
    host = f"[{prefill.host}]" if ":" in prefill.host else prefill.host
    return f"http://{host}:{prefill.bootstrap_port or BOOTSTRAP_PORT}"


def _engine_id(side: Side, rank: int) -> str:
    if rank < len(side.engine_ids):
        return side.engine_ids[rank]
    return engine_id(side, rank)


class _Entry(msgspec.Struct):
    engine_id: str


def engine_ids(page: bytes) -> tuple[str, ...]:
    """The engine ids by data-parallel rank, of what a bootstrap server answers to `QUERY`.

    Raises:
        ValueError: that is not what it says, or a rank between the others is missing.
    """
    entries = msgspec.json.decode(page, type=dict[str, _Entry])
    try:
        return tuple(entries[str(rank)].engine_id for rank in range(len(entries)))
    except KeyError as missing:
        raise ValueError(f"rank {missing} of {len(entries)} is missing") from None


MOONCAKE: Connector = Mooncake()
