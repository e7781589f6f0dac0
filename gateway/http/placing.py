"""Where a request is prefilled, given the engine that is to decode it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.disagg.connector import Connector
from gateway.disagg.pairs import Pairs
from gateway.disagg.placement import Decide, Fallback, Placement, Why, soonest
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import Route, route_of
from gateway.fleet.fleet import Fleet
from gateway.http.context import RequestContext, Tries
from gateway.scheduling.load import BackendLoad
from gateway.telemetry.metrics import Metrics


class Stranded(Exception):
    """The decode engine cannot serve the request without a handover, and there is none.

    Attributes:
        cause: how the last prefill leg failed, where there was one.
        refusal: why no handover carries such a request, where it is that.
    """

    def __init__(self, cause: BaseException | None = None, refusal: Refusal | None = None) -> None:
        super().__init__(str(refusal or cause))
        self.cause = cause
        self.refusal = refusal


class Remote(NamedTuple):
    """A prefill engine, and how the handover from there goes."""

    load: BackendLoad
    connector: Connector
    route: Route


class Placing:
    """Args:
    loads: the ledgers, by backend id.
    max_requests: prefill legs that one engine may have at a time, as of now.

    Attributes:
        decide: compares the two ways; may be replaced.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        pairs: Pairs,
        loads: Mapping[str, BackendLoad],
        decide: Decide,
        metrics: Metrics,
        max_requests: Callable[[], int],
    ) -> None:
        self.decide = decide
        self._fleet = fleet
        self._pairs = pairs
        self._loads = loads
        self._metrics = metrics
        self._max_requests = max_requests

    def place(
        self, context: RequestContext, decode: str, prefills: Sequence[BackendLoad]
    ) -> Remote | None:
        """Where a request is prefilled; None for its decode engine. Its record says why.

        Args:
            decode: id of the decode engine.
            prefills: the prefill engines that can take requests now.

        Raises:
            Stranded: its decode engine cannot, and nobody else either.
        """
        placement, remote = self._place(context, decode, prefills)
        context.record.placement = "local" if remote is None else "remote"
        context.record.placement_reason = placement.why
        return remote

    def _place(
        self, context: RequestContext, decode: str, prefills: Sequence[BackendLoad]
    ) -> tuple[Placement, Remote | None]:
        request, tries = context.request, context.tries
        assert request is not None
        alone = self.serves_alone(decode)
        if tries is not None and tries.fallback is not None:
            return self._alone(context, decode, tries.fallback), None
        scope = context.scope
        route = route_of(scope["method"], scope["path"])
        if route is None:
            return Placement(None, Why.ROUTE), None
        failed = () if tries is None else tries.failed
        target = self._fleet.get(decode)
        connectors = {
            load.id: connector
            for load in prefills
            if load.id not in failed
            and (connector := self._pairs.connector(self._fleet.get(load.id), target)) is not None
        }
        pairable = [load for load in prefills if load.id in connectors]
        roomy = [load for load in pairable if self._has_room(load)]
        if alone:
            placement = self.decide(request, self._loads[decode], roomy)
        elif roomy:
            placement = Placement(soonest(request, roomy), Why.NEEDED)
        else:
            placement = Placement(None, Why.NO_PREFILL)
        if placement.why == Why.NO_PREFILL:
            why = Fallback.NO_PREFILL
            if tries is not None and tries.last is not None:
                why = tries.last
            elif prefills:
                why = Fallback.FULL if pairable else Fallback.UNPAIRED
            return self._alone(context, decode, why), None
        if placement.prefill is None:
            return placement, None
        connector = connectors[placement.prefill.id]
        refused = connector.refuses(context.body, route)
        if refused is not None:
            if not alone:
                raise Stranded(refusal=refused)
            return Placement(None, refused), None
        return placement, Remote(placement.prefill, connector, route)

    def _alone(self, context: RequestContext, decode: str, why: Fallback) -> Placement:
        if not self.serves_alone(decode):
            raise Stranded(None if context.tries is None else context.tries.cause)
        self.serve_alone(context, why)
        return Placement(None, why)

    def _has_room(self, load: BackendLoad) -> bool:
        return (load.trials is None or load.trials.free) and load.prefill.has_slot(
            self._max_requests()
        )

    def serves_alone(self, id: str) -> bool:
        return self._pairs.serves_alone(self._fleet.get(id))

    def serve_alone(self, context: RequestContext, why: Fallback) -> None:
        """From here on the request, which was to be handed over, is not."""
        if context.tries is None:
            context.tries = Tries()
        context.tries.fallback = why
        if not context.record.fallback:
            context.record.fallback = why
            self._metrics.fallback(why)
