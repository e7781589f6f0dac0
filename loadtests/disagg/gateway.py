"""The gateway in virtual time, in front of engines with roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.disagg.decider import Placement
from gateway.disagg.engines import Engines
from gateway.disagg.links import Links
from gateway.disagg.placing import HandoverPlacing
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.streams import OutputLengths
from gateway.types import Role
from loadtests.disagg.engines import RoleEngines
from loadtests.disagg.exchange import RoleExchange
from loadtests.disagg.tally import Tally
from loadtests.replay.arm import Arm
from loadtests.replay.gateway import VirtualGateway
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim.engine import Engine
from loadtests.sim.handover import Handover, HandoverListener
from loadtests.sim.network import Network
from loadtests.sim.sequence import Request
from loadtests.sim.timeline import Timeline
from policies.base import RouteRequest
from policies.prefix_affinity import PrefixAffinity

MakePlacing = Callable[[Engines], PrefixAffinity]


class RoleGateway(VirtualGateway):
    """
    Args:
        roles: of each engine.
        network: between them.
        placing: makes the policy.
        pushed: the connector sends each layer as soon as it is computed.
        tally: is told what is handed over.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        arm: Arm,
        trace: Trace,
        timeline: Timeline,
        *,
        roles: Sequence[Role],
        network: Network,
        placing: MakePlacing,
        pushed: bool,
        tally: Tally,
    ) -> None:
        self.kv_bytes = engines[0].profile.memory.kv_bytes_per_token
        self.links = Links(self.kv_bytes)
        self._placing = placing(
            RoleEngines(
                {f"engine-{place}": role for place, role in enumerate(roles)},
                lambda: self.pool.backends,
                self.links,
                arm.scheduling.pace,
                pushed=pushed,
            )
        )
        super().__init__(engines, self._placing, arm.scheduling, trace, timeline, arm.knowledge)
        self.tally = tally
        self.lengths = OutputLengths()
        self._network = network
        self.pushed = pushed

    def exchange(
        self, request: TraceRequest, result: Result, ended: Callable[[], None]
    ) -> RoleExchange:
        return RoleExchange(self, request, result, ended)

    def load(self, id: str) -> BackendLoad:
        return self._loads[id]

    def pair(self, facts: RouteRequest, chosen: str) -> Placement | None:
        """How the engine that was chosen for a request is used; None without any with a role."""
        if not isinstance(self._placing, HandoverPlacing):
            return None
        return self._placing.pair(facts, self._loads[chosen])

    def hand_over(
        self, request: Request, prefill: Engine, decode: Engine, listener: HandoverListener
    ) -> Handover:
        return Handover(
            request,
            prefill,
            decode,
            self._network,
            self._timeline,
            listener,
            kv_bytes=self.kv_bytes,
            pushed=self.pushed,
        )
