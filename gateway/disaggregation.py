"""Prefill and decode apart: all that a gateway has for handovers between engines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from gateway.config import Settings
from gateway.disagg.engines import TransferSeconds, transfers
from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.networks import Networks
from gateway.disagg.pairs import Pairs
from gateway.disagg.placing import HandoverPlacing
from gateway.disagg.prefill_choice import by_cost, by_threshold
from gateway.disagg.report import ModelReport, report
from gateway.disagg.traffic import Traffic
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.upstream import Upstream
from gateway.http.dispatch import Dispatcher
from gateway.http.handover_preview import HandoverPreview
from gateway.http.handovers import Handovers
from gateway.http.joint_routing import JointRouting
from gateway.http.learning import Learning
from gateway.http.prefill_legs import PrefillLegs
from gateway.http.prefill_router import PrefillRouter
from gateway.http.verdicts import Verdicts
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pools import Pools
from gateway.telemetry.metrics import Metrics
from gateway.types import Clock, Role
from policies.base import Policy
from policies.prefix_affinity import PrefixAffinity

logger = logging.getLogger("prefixgate")


class Disaggregation:
    """Args:
    upstreams, loads: by backend id.

    Attributes:
        prefills: the prefill engines that can take prefill legs now, by model; an empty list where
            none of those that serve a model can. Whoever follows the fleet keeps it.
        legs: what prefill engines are sent, and told.
        joint: the policy, where it chooses the engines of both legs together.

    Raises:
        ConfigError: the config.json of a model cannot be read, or does not tell enough.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        fleet: Fleet,
        pools: Pools,
        upstreams: Mapping[str, Upstream],
        loads: Mapping[str, BackendLoad],
        index: PrefixIndex,
        learning: Learning,
        dispatcher: Dispatcher,
        verdicts: Verdicts,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._by_size = settings.disagg.min_uncached_tokens is not None
        self.prefills: dict[str, list[BackendLoad]] = {}
        self.joint: HandoverPlacing | None = None
        self.pairs = Pairs(settings.disagg, clock)
        self.networks = Networks(settings.disagg)
        self.engines = FleetEngines(fleet, pools, self.pairs, self.networks)
        self.traffic = Traffic(
            fleet=fleet,
            loads=loads,
            networks=self.networks,
            metrics=metrics,
            pace=lambda: pools.scheduling.pace,
            clock=clock,
        )
        least = settings.disagg.min_uncached_tokens
        router = PrefillRouter(
            engines=self.engines,
            loads=loads,
            choose=by_threshold(least) if least is not None else by_cost(self._transfers),
            jointly=lambda: self.joint is not None,
            metrics=metrics,
            max_requests=lambda: pools.scheduling.prefill.max_requests,
        )
        self.routing = JointRouting(
            engines=self.engines,
            prefills=self.prefills,
            loads=loads,
            policy=lambda: self.joint,
            clock=clock,
        )
        self.preview = HandoverPreview(self.engines, self.prefills, self.routing, router)
        self.legs = PrefillLegs(
            fleet=fleet,
            upstreams=upstreams,
            pairs=self.pairs,
            index=index,
            learning=learning,
            verdicts=verdicts,
            metrics=metrics,
            traffic=self.traffic,
            clock=clock,
        )
        self.handovers = Handovers(
            engines=self.engines,
            prefills=self.prefills,
            pairs=self.pairs,
            router=router,
            legs=self.legs,
            dispatcher=dispatcher,
            verdicts=verdicts,
            clock=clock,
            timeouts=settings.timeouts,
        )

    def policy_over(self, policy: Policy) -> Policy:
        """The policy to route by, which is `joint` from now on: where there are prefill engines,
        the policy's costs are seconds, and no fixed size says what is handed over, one that chooses
        the engines of both legs together. Else the policy itself."""
        self.joint = None
        if self.prefills and type(policy) is PrefixAffinity and not self._by_size:
            policy = self.joint = HandoverPlacing(policy.params, self.engines)
        return policy

    def report(self, backends: Iterable[Backend]) -> list[ModelReport]:
        pace = self._pools.scheduling.pace
        return report(backends, self.traffic, self.networks, self.pairs, pace)

    def say_protocols(self) -> None:
        """Log how caches are handed over, where any are or look as if they were."""
        for role in (Role.PREFILL, Role.DECODE):
            spoken = Counter(
                None if connector is None else connector.name
                for backend in self._fleet
                if backend.role is role
                for connector in (self.pairs.speaks(backend),)
            )
            for name, count in spoken.items():
                if name is not None:
                    logger.info("backends with role %s that speak %s: %d", role, name, count)
                else:
                    logger.warning(
                        "backends with role %s and no connector: %d. They hand nothing over;"
                        " see disagg.connector",
                        role,
                        count,
                    )

    def _transfers(self, model: str) -> TransferSeconds:
        return transfers(self.engines, model)
