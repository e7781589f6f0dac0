"""Telling the fleet, and the metrics, what an exchange shows of its backend."""

from __future__ import annotations

from gateway.disagg.prefill_leg import LegRefused
from gateway.fleet.fleet import Fleet
from gateway.fleet.upstream import FailureKind, UpstreamFailure
from gateway.http.context import RequestContext, Suspect
from gateway.http.dialects.errors import lacks_model
from gateway.http.failures import (
    BROKEN,
    CLIENT_ERROR,
    MISSING_MODEL,
    Blame,
    refusal,
    retry_after_seconds,
)
from gateway.scheduling.lease import Lease
from gateway.telemetry.metrics import Metrics


class Verdicts:
    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics

    def accepted(self, context: RequestContext, lease: Lease) -> None:
        """A backend has begun to serve the request: those that failed it before were at fault."""
        self._fleet.report_accepted(lease.backend_id, sent_at=lease.granted_at, trial=lease.trial)
        if context.suspects:
            self.convict(context)

    def convict(self, context: RequestContext) -> None:
        """Blame the backends that failed the request."""
        suspects, context.suspects = context.suspects, ()
        for id, cause, sent_at, trial in suspects:
            self._fleet.report_failure(id, cause, sent_at=sent_at, trial=trial)

    def ended(self, context: RequestContext, lease: Lease, broken: UpstreamFailure | None) -> None:
        """An exchange is over.

        Args:
            broken: what broke it, before or after its head was sent on.
        """
        relay, id = context.relay, lease.backend_id
        assert relay is not None
        failure = BROKEN[broken.kind] if broken is not None else relay.refusal
        if failure is None:
            if relay.status and not relay.cancelled:
                self._fleet.report_success(id)
            return
        if failure is CLIENT_ERROR:
            return
        self._metrics.upstream_error(id, failure.name)
        blame = failure.blame
        if blame is Blame.AVOIDED:
            self._fleet.report_busy(id, relay.says_wait)
        elif blame is Blame.ASKED:
            self._fleet.report_missing_model(id)
        elif blame is Blame.BACKEND_IF_SERVED:
            suspect = Suspect(id, f"status {relay.status}", lease.granted_at, lease.trial)
            context.suspects = (*context.suspects, suspect)
        elif blame is Blame.BACKEND or (
            blame is Blame.BACKEND_IF_SILENT and relay.unbegun and _had_time(context, lease)
        ):
            assert broken is not None
            self._blame(lease, broken)

    def leg_failed(
        self,
        context: RequestContext,
        lease: Lease,
        cause: BaseException | None,
        *,
        to_blame: bool = True,
    ) -> None:
        """A prefill leg has failed.

        Args:
            lease: at the prefill engine.
            cause: what no row of failures stands for is nobody's fault.
            to_blame: it is clear that it was this leg.
        """
        id = lease.backend_id
        if isinstance(cause, UpstreamFailure):
            row = BROKEN[cause.kind]
            self._metrics.upstream_error(id, row.name)
            if to_blame and row.blame is not Blame.NOBODY:
                self._blame(lease, cause)
        elif isinstance(cause, LegRefused):
            self._leg_refused(context, lease, cause)

    def _blame(self, lease: Lease, failure: UpstreamFailure) -> None:
        self._fleet.report_failure(
            lease.backend_id,
            str(failure),
            gone=failure.kind is FailureKind.CONNECT,
            sent_at=lease.granted_at,
            trial=lease.trial,
        )

    def _leg_refused(self, context: RequestContext, lease: Lease, refused: LegRefused) -> None:
        id, row = lease.backend_id, refusal(refused.status)
        if refused.status == 404 and lacks_model(refused.body):
            row = MISSING_MODEL
        if row is None or row is CLIENT_ERROR:
            return
        self._metrics.upstream_error(id, row.name)
        if row.blame is Blame.AVOIDED:
            wait = next((v for n, v in refused.headers if n == b"retry-after"), None)
            self._fleet.report_busy(id, None if wait is None else retry_after_seconds(wait))
        elif row.blame is Blame.ASKED:
            self._fleet.report_missing_model(id)
        elif row.blame is Blame.BACKEND_IF_SERVED:
            suspect = Suspect(id, f"status {refused.status}", lease.granted_at, lease.trial)
            context.suspects = (*context.suspects, suspect)


def _had_time(context: RequestContext, lease: Lease) -> bool:
    """Whether most of a request's time was the backend's. What waits in queues, or was elsewhere
    before, leaves the next backend a moment in which none could answer."""
    ends_at = context.ends_at
    return ends_at - lease.granted_at >= lease.granted_at - context.record.arrived
