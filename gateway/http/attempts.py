"""Trying backends until one has answered."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.config import Retries, Timeouts
from gateway.fleet.fleet import UnknownBackend
from gateway.fleet.time_limits import TimeLimitTable
from gateway.fleet.upstream import FailureKind, UpstreamFailure
from gateway.http.admission import Admission
from gateway.http.context import RequestContext
from gateway.http.errors import UpstreamBroke
from gateway.http.failures import BROKEN, Blame, Failure, may_retry
from gateway.http.handovers import Handovers
from gateway.http.joint_routing import JointRouting
from gateway.http.prefill_router import Stranded
from gateway.http.retry import RetryBudget
from gateway.http.verdicts import Verdicts
from gateway.scheduling.pool import Pool
from gateway.telemetry.metrics import Metrics
from policies.base import RouteRequest

PATIENCE = 1.0
"""Seconds that a request which a busy backend refused waits for another one: no longer than its
client would be told to wait before it comes again."""

_UNREACHED = frozenset({FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT})


class Attempts:
    """Each backend at most once, and only with room for the request."""

    def __init__(
        self,
        *,
        admission: Admission,
        joint: JointRouting,
        handovers: Handovers,
        verdicts: Verdicts,
        metrics: Metrics,
        retries: Retries,
        timeouts: Timeouts,
    ) -> None:
        self._admission = admission
        self._joint = joint
        self._handovers = handovers
        self._verdicts = verdicts
        self._metrics = metrics
        self._budget = RetryBudget(retries.budget)
        self.reconfigure(retries, timeouts)

    def reconfigure(self, retries: Retries, timeouts: Timeouts) -> None:
        """Go by other settings from the next request on. What is left of the budget stays."""
        self._retries = retries
        self._budget.share = retries.budget
        self._limits = TimeLimitTable(timeouts)

    async def run(self, context: RequestContext, pool: Pool) -> None:
        """Raises:
        RequestError: no backend took the request, or the last one broke off before it answered.
        ClientGone: the client left before.
        """
        assert context.request is not None
        self._budget.earn()
        limits = self._limits.of(pool.model, context.request.work_class)
        context.limits = limits
        if limits.total is not None:
            context.ends_at = context.record.arrived + limits.total
        inference = context.dialect.ends_with_marker
        tried: list[str] = []
        if pool.screen is not None:
            try:
                self._joint.appraise(context, pool)
            except Stranded as stranded:
                self._handovers.give_up(context, stranded)
                return
        await self._admission.admit(context, pool)
        while True:
            before = len(tried)
            try:
                if pool.screen is not None and not self._joint.arrange(context, pool, tried):
                    await self._anew(context, pool)
                    continue
                lease = context.lease
                assert lease is not None
                tried.append(lease.backend_id)
                more = (
                    context.owner is None
                    and len(tried) <= self._retries.max_retries
                    and self._has_untried(pool, tried)
                )
                broken = await self._handovers.send(
                    context, pool, lease, may_retry=more and inference
                )
            except UnknownBackend:
                del tried[before:]  # nothing was sent there
                await self._anew(context, pool)
                continue
            except Stranded as stranded:
                if await self._elsewhere(context, pool, tried, stranded):
                    continue
                return
            relay = context.relay
            assert relay is not None
            context.opened = relay.opened  # comments may have gone out while it waited
            if broken is not None:
                failure: Failure | None = BROKEN[broken.kind] if relay.unbegun else None
            else:
                failure = relay.refusal if relay.refused else None
            if failure is not None and more and await self._again(context, pool, tried, failure):
                self._metrics.retries += 1
                continue
            if broken is not None and self._stand_in(context, pool, tried, broken):
                self._metrics.retries += 1
                continue
            self._judge_trial(context, pool)
            if broken is not None:
                raise UpstreamBroke(broken)
            if relay.refused:
                relay.pass_on()
            return

    async def _anew(self, context: RequestContext, pool: Pool) -> None:
        """Place a request as if it had only now come."""
        self._admission.give_back(context)
        await self._admission.admit(context, pool)

    async def _elsewhere(
        self, context: RequestContext, pool: Pool, tried: list[str], stranded: Stranded
    ) -> bool:
        """Get the request a lease at a backend that needs no handover, or answer it."""
        tried += self._handovers.serve_nothing_alone(pool)
        if (
            context.owner is None
            and self._has_untried(pool, tried)
            and await self._admission.again(context, pool, _avoided(context, tried), patience=None)
        ):
            return True
        self._handovers.give_up(context, stranded)
        return False

    async def _again(
        self, context: RequestContext, pool: Pool, tried: list[str], failure: Failure
    ) -> bool:
        """Get the request a lease at another backend, if the failure and the budget allow it."""
        request = context.request
        assert request is not None
        patience: float | None = None
        if failure.blame is Blame.AVOIDED:
            patience = PATIENCE if _has_well(pool, tried) else 0.0
        stood_in = self._joint.stood_in(tried[-1])
        return (
            not context.client.gone
            and may_retry(
                failure,
                inference=context.dialect.ends_with_marker,
                after_timeout=stood_in or self._retries.after_timeout,
            )
            and (patience != 0.0 or self._has_other(pool, request, tried))
            and (stood_in or self._budget.spend())
            and await self._admission.again(
                context, pool, _avoided(context, tried), patience=patience
            )
        )

    def _stand_in(
        self, context: RequestContext, pool: Pool, tried: Collection[str], broken: UpstreamFailure
    ) -> bool:
        """Get a request whose backend cannot be reached a lease at a prefill engine, where nobody
        else is left. Where the policy does not choose among engines of all roles, they are in the
        pool only without others."""
        if (
            broken.kind not in _UNREACHED
            or context.owner is not None
            or context.client.gone
            or len(tried) > self._retries.max_retries
            or self._has_untried(pool, tried)
        ):
            return False
        lease = self._handovers.stand_in(context, pool, tried)
        if lease is None:
            return False
        self._admission.give_back(context)
        context.lease = lease
        return True

    def _has_untried(self, pool: Pool, tried: Collection[str]) -> bool:
        """Whether there is a backend that was not tried, with room or without."""
        backends = pool.members
        if pool.screen is not None:
            return self._joint.could_begin(pool, backends, tried)
        return len(tried) < len(backends) or any(load.id not in tried for load in backends)

    def _has_other(self, pool: Pool, request: RouteRequest, tried: Collection[str]) -> bool:
        """Whether a backend that was not tried has room for the request now."""
        roomy = pool.candidates(request)
        if pool.screen is not None:
            return self._joint.could_begin(pool, roomy, tried)
        return any(load.id not in tried for load in roomy)

    def _judge_trial(self, context: RequestContext, pool: Pool) -> None:
        """A backend on trial that failed a request which was not put to another has failed it; one
        that is alone has not: it may be the request."""
        suspects = context.suspects
        if len(suspects) == 1 and suspects[0].trial is not None and len(pool.backends) > 1:
            self._verdicts.convict(context)


def _avoided(context: RequestContext, tried: Sequence[str]) -> tuple[str, ...]:
    """The backends that failed a request, in whichever part."""
    failed = () if context.tries is None else context.tries.failed
    return (*tried, *failed)


def _has_well(pool: Pool, tried: Collection[str]) -> bool:
    """Whether a backend that was not tried is neither busy nor on trial, and so worth a wait."""
    return any(load.trials is None and load.id not in tried for load in pool.backends)
