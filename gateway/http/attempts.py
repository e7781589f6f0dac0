"""Trying backends until one has answered."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config import Retries
from gateway.fleet.fleet import Fleet, UnknownBackend
from gateway.http.admission import Admission, no_backend
from gateway.http.context import RequestContext
from gateway.http.dispatch import Dispatcher
from gateway.http.errors import UpstreamBroke
from gateway.http.retry import RetryBudget, is_unserved
from gateway.scheduling.pool import Pool
from gateway.telemetry.metrics import Metrics
from policies.base import RouteRequest


class Attempts:
    """Each backend at most once, and only with room for the request."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        admission: Admission,
        dispatcher: Dispatcher,
        metrics: Metrics,
        settings: Retries,
    ) -> None:
        self._fleet = fleet
        self._admission = admission
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._max_retries = settings.max_retries
        self._budget = RetryBudget(settings.budget)

    async def run(self, context: RequestContext, pool: Pool) -> None:
        """Raises:
        RequestError: no backend took the request, or the last one broke off before it answered.
        ClientGone: the client left before.
        """
        self._budget.earn()
        tried: dict[str, int] = {}
        await self._admission.admit(context, pool)
        while True:
            request, lease = context.request, context.lease
            assert request is not None
            assert lease is not None
            backend = lease.backend_id
            tried[backend] = 0
            may_retry = len(tried) <= self._max_retries and _has_untried(pool, tried)
            repeatable = may_retry and context.dialect.ends_with_marker
            try:
                failure = await self._dispatcher.send(context, lease, may_retry=repeatable)
            except UnknownBackend:
                raise no_backend("The chosen backend was removed.") from None
            relay = context.relay
            assert relay is not None
            context.opened = relay.opened
            if failure is None and not relay.refused:
                if 0 < relay.status < 500:
                    self._blame(tried)
                return
            tried[backend] = relay.status
            unserved = failure is None or is_unserved(failure, relay.status, repeatable)
            if (
                may_retry
                and unserved
                and not context.client.gone
                and _has_other(pool, request, tried)
                and self._budget.spend()
                and self._admission.again(context, pool, tuple(tried))
            ):
                self._metrics.retries += 1
                continue
            if failure is not None:
                raise UpstreamBroke(failure)
            relay.pass_on()
            return

    def _blame(self, tried: dict[str, int]) -> None:
        """Another backend has served the request, so those that answered 5xx were at fault.

        Where all fail alike it may well be the request, which must not put out the whole fleet.
        """
        for backend, status in tried.items():
            if status >= 500 and status not in (501, 503):
                self._fleet.report_failure(backend, f"status {status}")


def _has_untried(pool: Pool, tried: Collection[str]) -> bool:
    """Whether there is a backend that was not tried, with room or without."""
    backends = pool.backends
    return len(tried) < len(backends) or any(load.id not in tried for load in backends)


def _has_other(pool: Pool, request: RouteRequest, tried: Collection[str]) -> bool:
    """Whether a backend that was not tried has room for the request now."""
    return any(load.id not in tried for load in pool.candidates(request))
