"""The two engines of a handover, as their settings and they themselves describe them."""

from __future__ import annotations

from gateway.config import Transfer
from gateway.disagg.connector import Side
from gateway.fleet.backend import Backend

_UNSAID = Transfer()


def side_of(backend: Backend, engine_ids: tuple[str, ...] = ()) -> Side:
    """Args:
    engine_ids: by rank, where the engine has told them.
    """
    transfer, facts = backend.config.transfer or _UNSAID, backend.facts
    return Side(
        host=transfer.host or backend.address.host,
        bootstrap_port=transfer.bootstrap_port,
        engine_id=transfer.engine_id or "",
        engine_ids=engine_ids,
        side_channel_host=transfer.host or "",
        side_channel_port=transfer.side_channel_port,
        tp_size=transfer.tp_size,
        pp_size=transfer.pp_size,
        dp_size=transfer.dp_size,
        version="" if facts is None else facts.version,
        page_size=None if facts is None else facts.block_size,
        cache_dtype="" if facts is None else facts.cache_dtype,
    )


def cache_mismatch(prefill: Side, decode: Side) -> str | None:
    """Why caches of these two do not fit into each other, for people."""
    ours, theirs = prefill.cache_dtype, decode.cache_dtype
    return f"cache of {ours}, and of {theirs}" if ours and theirs and ours != theirs else None
