"""How an answer went, written down in its request's record."""

from __future__ import annotations

from gateway.disagg.handover import Handover
from gateway.http.context import RequestContext
from gateway.http.dialects.usage import Usage, usage_at_end
from gateway.http.failures import BROKEN, ERROR_EVENT
from gateway.http.relay import Relay
from gateway.telemetry.record import RequestRecord
from gateway.types import Outcome


def note_answer(relay: Relay, record: RequestRecord) -> None:
    """Fill in what the relay has seen: status, latencies, token counts, outcome."""
    scanner = relay.scanner
    usage = relay.usage
    if relay.status:
        record.status = relay.status
    record.output_tokens = relay.output_tokens
    if scanner is not None:
        usage = scanner.usage
        if relay.first_at is not None:
            record.ttft = relay.first_at - record.arrived
            if relay.ended_at is not None and scanner.tokens > 1:
                record.tpot = (relay.ended_at - relay.first_at) / (scanner.tokens - 1)
    if usage is not None:
        record.reported_prompt_tokens = usage.prompt_tokens
        record.reported_cached_tokens = usage.cached_tokens
    if record.outcome is None:
        record.outcome = outcome_of(relay)


def note_handover(context: RequestContext, handover: Handover) -> None:
    """Fill in what the prefill leg told of a request that was prefilled elsewhere.

    Cached is what no engine had to compute. To the decode engine everything is, that was handed
    over; only the prefill engine knows.
    """
    record = context.record
    usage = handover_usage(context, handover)
    record.reported_cached_tokens = None if usage is None else usage.cached_tokens
    if record.reported_prompt_tokens is None and usage is not None:
        record.reported_prompt_tokens = usage.prompt_tokens


def handover_usage(context: RequestContext, handover: Handover) -> Usage | None:
    """The counts in a prefill leg's answer; None when there are none, or none yet."""
    answer = handover.answer
    if answer is None:
        return None
    if handover.connector.concurrent:
        return usage_at_end(answer, context.dialect.usage)
    return context.dialect.usage(answer)


def outcome_of(relay: Relay) -> Outcome:
    """The one outcome of an answer that was relayed, at least in part."""
    if relay.cancelled:
        return Outcome.CANCELLED
    if relay.failure is not None:
        return BROKEN[relay.failure.kind].outcome
    if relay.scanner is not None and relay.scanner.error is not None:
        return ERROR_EVENT.outcome
    failure = relay.refusal
    return Outcome.OK if failure is None else failure.outcome


def tokens_of_work(context: RequestContext) -> int:
    """Prompt and output tokens that a backend has worked on for a request that has ended.

    A whole answer counts, and what had come of one that broke off after its first token. Of a
    client that left when a backend had its request, the prompt counts and what was generated until
    then. Whatever else ended without an answer counts for nothing.
    """
    record, relay = context.record, context.relay
    if context.phase == "prefill" or (context.phase == "connect" and context.handover is not None):
        return record.prompt_tokens if record.outcome is Outcome.CANCELLED else 0
    if relay is None or context.phase != "answer":
        return 0
    began = relay.first_at is not None
    if record.outcome not in (Outcome.OK, Outcome.CANCELLED) and not began:
        return 0
    reported = record.reported_prompt_tokens
    return (record.prompt_tokens if reported is None else reported) + record.output_tokens
