"""Why a prefill leg that failed leaves its request to one engine."""

from __future__ import annotations

from gateway.disagg.connector import NoTransfer
from gateway.disagg.prefill_leg import LegRefused
from gateway.disagg.reasons import Fallback
from gateway.fleet.upstream import FailureKind, UpstreamFailure
from gateway.http.failures import BUSY, refusal

_SLOW = frozenset(
    {FailureKind.FIRST_BYTE_TIMEOUT, FailureKind.IDLE_TIMEOUT, FailureKind.TOTAL_TIMEOUT}
)


def fallback_for(cause: BaseException | None) -> Fallback:
    """Args:
    cause: None when the leg's answer came, and is too old by now.
    """
    if cause is None:
        return Fallback.EXPIRED
    if isinstance(cause, NoTransfer):
        return Fallback.NO_TRANSFER
    if isinstance(cause, LegRefused):
        return Fallback.BUSY if refusal(cause.status) is BUSY else Fallback.REFUSED
    if isinstance(cause, UpstreamFailure) and cause.kind in _SLOW:
        return Fallback.SLOW
    return Fallback.BROKEN
