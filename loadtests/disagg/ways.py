"""What is compared: never a handover, always one, from a fixed size on, and where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gateway.config import Scheduling
from gateway.disagg.engines import Engines
from gateway.disagg.placing import HandoverPlacing
from loadtests.disagg.fleet import RoleFleet, ratio
from loadtests.disagg.gateway import RoleGateway
from loadtests.disagg.rules import DecodeFirst, FixedThreshold
from loadtests.disagg.tally import Tally
from loadtests.replay import arm
from loadtests.replay.arm import Arm
from loadtests.replay.fleet import Fleet
from loadtests.replay.player import Front
from loadtests.replay.trace import Trace
from loadtests.sim.engine import Engine
from loadtests.sim.network import GBPS, Network
from loadtests.sim.timeline import Timeline
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams

POLICY = "prefix_affinity"


@dataclass(slots=True, frozen=True)
class Way:
    """
    Attributes:
        prefill: how many of the engines are prefill engines; 0 for none, and no handovers.
        chunk: token budget of a step of the others.
        threshold: tokens from which on there is a handover, 0 for always; None where it pays.
        joint: both engines are chosen together, by the same costs as ours are; otherwise the
            decode engine first, as other gateways do.
    """

    prefill: int
    chunk: int
    threshold: int | None = None
    joint: bool = True

    @property
    def name(self) -> str:
        if not self.prefill:
            return f"never, chunk {self.chunk}"
        match self.threshold:
            case None:
                return "ours"
            case 0:
                rule = "always"
            case tokens:
                rule = f"from {tokens:,} on"
        return f"{rule}, {'placed as ours' if self.joint else 'decode engine first'}"

    @property
    def option(self) -> str:
        """The name in a command, of all chunks and numbers of prefill engines."""
        if not self.prefill:
            return "never"
        if self.threshold is None:
            return "ours"
        rule = f"from-{self.threshold}" if self.threshold else "always"
        return f"{rule}-{'placed' if self.joint else 'decode-first'}"

    def fleet(self, engines: Fleet) -> RoleFleet:
        roles = ratio(self.prefill, len(engines.speeds))
        return RoleFleet(engines.profile, engines.speeds, roles=roles, chunk=self.chunk)

    def arm(self, pace: float) -> Arm:
        """
        Args:
            pace: seconds per output token that answers are to keep to.
        """
        return arm.find(f"{POLICY}?scheduling.pace={pace}", Scheduling())

    def placing(self, engines: Engines) -> PrefixAffinity:
        params = PrefixAffinityParams()
        if not self.prefill:
            return PrefixAffinity(params)
        if self.threshold is None:
            return HandoverPlacing(params, engines)
        rule = FixedThreshold if self.joint else DecodeFirst
        return rule(params, engines, self.threshold)


@dataclass(slots=True, frozen=True)
class Wire:
    """The network, and whether the connector sends each layer as soon as it is computed."""

    gbps: float = 100.0
    pushed: bool = False


def front(
    engines: Sequence[Engine],
    arm: Arm,
    trace: Trace,
    timeline: Timeline,
    *,
    way: Way,
    wire: Wire,
    tally: Tally,
) -> Front:
    return RoleGateway(
        engines,
        arm,
        trace,
        timeline,
        roles=ratio(way.prefill, len(engines)),
        network=Network(wire.gbps * GBPS),
        placing=way.placing,
        pushed=wire.pushed,
        tally=tally,
    )


def fronts(way: Way, wire: Wire, tally: Tally) -> partial[Front]:
    return partial(front, way=way, wire=wire, tally=tally)
