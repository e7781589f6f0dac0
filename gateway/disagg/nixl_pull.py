"""vLLM's NixlConnector and NixlPullConnector: the prefill engine answers with where its blocks are,
and the decode engine reads them there.

Its lease begins with the prefill leg's answer. From when the decode engine has the request, that
engine renews it; a prompt that nobody reads in time is let go, and reading it later may give
another prompt's cache.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.connector import Connector, Leg, NoTransfer, Pairing, Release, Side
from gateway.disagg.members import Members
from gateway.disagg.vllm import ASKED, Vllm, decode_leg, nixl_mismatch, prefill_leg, rejected

_LEASE = 30.0
"""Seconds for which engines keep a prompt by default (kv_lease_duration)."""


class _Answer(msgspec.Struct, gc=False):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class _Params(msgspec.Struct, gc=False):
    """What a decode engine cannot do without; it is passed on as it came."""

    do_remote_prefill: bool
    remote_engine_id: str
    remote_block_ids: list[Any]
    remote_host: str
    remote_port: int


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_params = msgspec.json.Decoder(_Params).decode


class NixlPull(Vllm):
    name: ClassVar[ConnectorName] = ConnectorName.NIXL_PULL
    concurrent: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    fetch_within: ClassVar[float | None] = 0.75 * _LEASE
    """The decode engine renews it every sixth of it, the first time one sixth after it has the
    request; and it began before the answer was here."""

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        return super().mismatch(prefill, decode) or nixl_mismatch(prefill, decode)

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        return prefill_leg(body, pairing, ASKED)

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        return decode_leg(body, pairing, _params(pairing, answer))

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        try:
            return rejected(pairing, _params(pairing, answer))
        except NoTransfer:
            return None


def _params(pairing: Pairing, answer: bytes | None) -> bytes:
    """As they came, but for the address where the settings know better: by default engines name
    "localhost".

    Raises:
        NoTransfer: there are none, or none that can be used.
    """
    if answer is None:
        raise NoTransfer("no answer from the prefill engine")
    try:
        params = bytes(_decode_answer(answer).kv_transfer_params)
    except (ValueError, RecursionError):
        raise NoTransfer("the prefill engine's answer is not a JSON object", held=True) from None
    if params in (b"null", b"{}"):
        raise NoTransfer("no kv_transfer_params in the prefill engine's answer")
    try:
        known = _decode_params(params)
    except (ValueError, RecursionError):
        why = "malformed kv_transfer_params in the prefill engine's answer"
        raise NoTransfer(why, held=True) from None
    if not (known.do_remote_prefill and known.remote_engine_id and known.remote_host):
        why = "kv_transfer_params without an engine in the prefill engine's answer"
        raise NoTransfer(why, held=True)
    prefill, values = pairing.prefill, {}
    if prefill.side_channel_host:
        values["remote_host"] = msgspec.json.encode(prefill.side_channel_host)
    return Members(params).edited(values) if values else params


NIXL_PULL: Connector = NixlPull()
