"""The access log: one JSON line for each request that has ended."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from gateway.telemetry.digest import digest
from gateway.telemetry.lines import MAX_MODEL, MAX_WAITING, LineLog, micro
from gateway.telemetry.record import RequestRecord
from gateway.types import Priority


class AccessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; the members mean what they mean in `RequestRecord`."""

    time: float
    """When the request arrived, seconds since 1970."""
    id: str
    client_id: str | None
    model: str
    dialect: str
    stream: bool
    status: int
    outcome: str | None
    backend: str | None
    tenant: str | None
    """Digest of whom the request counts for: its API key, or what names its tenant."""
    key: str | None
    """Name of its API key."""
    session: str | None
    """Digest of its session key."""
    priority: Priority
    work_class: str | None
    reason: str | None
    spill: str | None
    placement: str | None
    placement_reason: str | None
    fallback: str | None
    prefill_backend: str | None
    prefill_leg_seconds: float | None
    refusal: str | None
    disconnect_phase: str | None
    prompt_bytes: int
    prompt_tokens: int
    matched_tokens: int
    uncached_tokens: int
    output_tokens: int
    max_tokens: int | None
    reported_prompt_tokens: int | None
    reported_cached_tokens: int | None
    queue_seconds: float
    ttft: float | None
    tpot: float | None
    duration: float
    chain: str | None
    """Base64 of the packed hashes of its prompt's blocks, 8 bytes each."""


class AccessLog(LineLog[RequestRecord]):
    """A line for each record."""

    def __init__(self, path: str, max_waiting: int = MAX_WAITING) -> None:
        super().__init__("access log", path, _line, max_waiting)


def _line(record: RequestRecord) -> AccessLine:
    return AccessLine(
        time=round(record.arrived_unix, 6),
        id=record.id,
        client_id=record.client_id or None,
        model=record.model[:MAX_MODEL],
        dialect=record.dialect,
        stream=record.stream,
        status=record.status,
        outcome=record.outcome,
        backend=record.backend or None,
        tenant=digest(record.tenant),
        key=record.key or None,
        session=digest(record.session),
        priority=record.priority,
        work_class=record.work_class,
        reason=record.reason,
        spill=record.spill,
        placement=record.placement or None,
        placement_reason=record.placement_reason or None,
        fallback=record.fallback or None,
        prefill_backend=record.prefill_backend or None,
        prefill_leg_seconds=(
            None if record.prefill_leg_seconds is None else micro(record.prefill_leg_seconds)
        ),
        refusal=record.refusal,
        disconnect_phase=record.disconnect_phase,
        prompt_bytes=record.prompt_bytes,
        prompt_tokens=record.prompt_tokens,
        matched_tokens=round(record.matched_tokens),
        uncached_tokens=record.uncached_tokens,
        output_tokens=record.output_tokens,
        max_tokens=record.max_tokens,
        reported_prompt_tokens=record.reported_prompt_tokens,
        reported_cached_tokens=record.reported_cached_tokens,
        queue_seconds=micro(record.queue_seconds),
        ttft=None if record.ttft is None else micro(record.ttft),
        tpot=None if record.tpot is None else micro(record.tpot),
        duration=micro(record.duration),
        chain=b64encode(record.chain).decode() if record.chain else None,
    )
