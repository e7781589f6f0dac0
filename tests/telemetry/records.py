"""Records of requests that ended in the usual ways."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.telemetry.record import RequestRecord
from gateway.types import Outcome, Priority, Reason, WorkClass

SERVED = "served"
BACKEND = "b1"


def routed(**changes: Any) -> RequestRecord:
    """A streamed request that was routed and went well."""
    record = RequestRecord(
        id="r-1",
        dialect="openai-chat",
        client_id="the-clients-own",
        arrived=100.0,
        arrived_unix=1_800_000_000.25,
        model=SERVED,
        stream=True,
        keyed=True,
        tenant="a key's digest",
        key="team",
        session="s-1",
        priority=Priority.HIGH,
        max_tokens=256,
        work_class=WorkClass.DECODE,
        backend=BACKEND,
        reason=Reason.PREFIX,
        outcome=Outcome.OK,
        status=200,
        prompt_bytes=4200,
        prompt_tokens=1000,
        matched_tokens=800.0,
        uncached_tokens=200,
        queue_seconds=0.02,
        ttft=0.12,
        tpot=0.011,
        duration=1.5,
        output_tokens=100,
    )
    return replace(record, **changes)


def refused(**changes: Any) -> RequestRecord:
    """A request that found its queue full."""
    record = RequestRecord(
        id="r-2",
        dialect="openai-chat",
        model=SERVED,
        keyed=True,
        work_class=WorkClass.PREFILL,
        refusal="queue_full",
        outcome=Outcome.REJECTED,
        status=429,
        prompt_tokens=9000,
        duration=0.001,
    )
    return replace(record, **changes)
