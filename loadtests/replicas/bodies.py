"""Several gateways in virtual time before one fleet, each with a body of its own, behind a load
balancer that knows nothing of prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gateway.prefix.generations import Generations
from gateway.prefix.shared_index import SharedIndex
from gateway.scheduling.shared_load import SharedLoad
from loadtests.replay.arm import Arm
from loadtests.replay.gateway import VirtualGateway
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.replicas.feed import Member, VirtualFeed
from loadtests.replicas.sharing import Sharing
from loadtests.replicas.tally import Tally
from loadtests.sim.engine import Engine
from loadtests.sim.timeline import Timeline

HEARTBEAT = 1.0
"""Seconds between two listings of what a replica has under way."""
LOOK = 1.0
"""Seconds between two looks at what is in flight."""


class Bodies:
    """Each request goes to one of them at random, the turns of a session too; satisfies
    `loadtests.replay.player.Front`.

    Args:
        seed: of the balancer.
        tally: filled in.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        arm: Arm,
        trace: Trace,
        timeline: Timeline,
        *,
        replicas: int,
        sharing: Sharing,
        seed: int,
        tally: Tally,
    ) -> None:
        self.engines = list(engines)
        self._timeline = timeline
        self.feed = VirtualFeed(sharing, timeline, tally)
        self.bodies = [
            VirtualGateway(engines, arm.policy(), arm.scheduling, trace, timeline, arm.knowledge)
            for _ in range(replicas)
        ]
        for body in self.bodies:
            self._connect(body, self.feed.join())
        self._dice = random.Random(f"balancer:{seed}")
        self._tally = tally
        self._look_later()

    def submit(self, request: TraceRequest, result: Result, ended: Callable[[], None]) -> None:
        self._dice.choice(self.bodies).submit(request, result, ended)

    def remove(self, place: int) -> None:
        for body in self.bodies:
            body.remove(place)

    def crash(self, place: int) -> None:
        for body in self.bodies:
            body.crash(place)

    def join(self, place: int, engine: Engine) -> None:
        self.engines[place] = engine
        for body in self.bodies:
            body.join(place, engine)

    def _connect(self, body: VirtualGateway, member: Member) -> None:
        """Have a body tell the others what they should know, and hear them."""
        timeline = self._timeline
        load = SharedLoad(member, timeline.time, lambda: body.pool.policy, body.speeds)
        for each in body.pool.backends:
            load.attach(each)
        index = SharedIndex(body.index, Generations(), member, timeline.time, member.origin)
        member.subscribe([index, load])

        def beat() -> None:
            for part in (index, load):
                for kind, record in part.state():
                    member.publish(kind, record)
            timeline.call_at(timeline.time() + HEARTBEAT, beat)

        beat()

    def _look_later(self) -> None:
        self._timeline.call_at(self._timeline.time() + LOOK, self._look)

    def _look(self) -> None:
        self._tally.look([engine.running + engine.waiting for engine in self.engines])
        self._look_later()
