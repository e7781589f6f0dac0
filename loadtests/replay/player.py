"""A trace played through a gateway, from the first arrival to the last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from loadtests.replay.arm import Arm
from loadtests.replay.fleet import Fleet, cold_seconds
from loadtests.replay.gateway import VirtualGateway
from loadtests.replay.incidents import Incident, Kind
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim.engine import Engine
from loadtests.sim.timeline import Timeline, VirtualTimeline

LOOK = 60.0
"""Seconds of virtual time between two looks whether a run is still of interest."""


class Mode(StrEnum):
    OPEN = "open"
    """Requests come when the trace says, however the answers before them go."""
    CLOSED = "closed"
    """A turn comes its think time after the end of the turn before it."""


@dataclass(slots=True, frozen=True)
class Scenario:
    """What happens to all policies alike.

    Attributes:
        load: how many times as fast as recorded requests come. In closed loop that goes for first
            turns only: people do not think faster.
    """

    trace: Trace
    fleet: Fleet
    mode: Mode = Mode.OPEN
    load: float = 1.0

    @property
    def span(self) -> float:
        """Seconds over which the requests would arrive in open loop."""
        return self.trace.span / self.load


class Front(Protocol):
    """What requests are submitted to: a gateway, or several that stand for one. Its methods are
    those of `VirtualGateway`."""

    engines: list[Engine]

    def submit(self, request: TraceRequest, result: Result, ended: Callable[[], None]) -> None: ...
    def remove(self, place: int) -> None: ...
    def crash(self, place: int) -> None: ...
    def join(self, place: int, engine: Engine) -> None: ...


def single(engines: Sequence[Engine], arm: Arm, trace: Trace, timeline: Timeline) -> Front:
    """One gateway."""
    return VirtualGateway(engines, arm.policy(), arm.scheduling, trace, timeline, arm.knowledge)


class Player:
    """One run. `results` are in the trace's order, and complete once `play` has returned.

    Args:
        ended: told of each request that is served or refused.
        front: makes what the requests go to.
    """

    def __init__(
        self,
        scenario: Scenario,
        arm: Arm,
        ended: Callable[[Result], None] | None = None,
        front: Callable[[Sequence[Engine], Arm, Trace, Timeline], Front] = single,
    ) -> None:
        trace, fleet = scenario.trace, scenario.fleet
        self._scenario = scenario
        self._requests = trace.requests
        self._ended = ended
        self._fleet = fleet
        self._timeline = VirtualTimeline()
        engines = fleet.engines(self._timeline, trace.unit_tokens)
        self._gateway = front(engines, arm, trace, self._timeline)
        for place in fleet.absent:
            self._gateway.remove(place)
        for incident in fleet.incidents:
            self._timeline.call_at(incident.seconds, partial(self._befall, incident))
        self._turns: dict[int, list[int]] = {}
        self._left = len(trace.requests)
        self.results = [
            Result(
                request.arrival / scenario.load,
                request.input_tokens,
                request.output_tokens,
                cold_seconds(fleet.profile, request.input_tokens),
            )
            for request in trace.requests
        ]

    def play(self, wanted: Callable[[float], bool] | None = None) -> None:
        """
        Args:
            wanted: whether to go on, asked every `LOOK` seconds with the time.
        """
        for place, request in enumerate(self._requests):
            if self._scenario.mode is Mode.CLOSED and request.parent is not None:
                self._turns.setdefault(request.parent, []).append(place)
            else:
                self._start_at(self.results[place].arrival, place)
        until = 0.0
        while self._left and (wanted is None or wanted(until)):
            until += LOOK
            self._timeline.run(until)

    def _befall(self, incident: Incident) -> None:
        gateway, place = self._gateway, incident.engine
        match incident.kind:
            case Kind.CRASH:
                gateway.crash(place)
            case Kind.DRAIN:
                gateway.remove(place)
            case Kind.JOIN:
                unit = self._scenario.trace.unit_tokens
                gateway.join(place, self._fleet.engine(place, self._timeline, unit))
            case Kind.FLUSH:
                gateway.engines[place].cache.forget()

    def _start_at(self, time: float, place: int) -> None:
        self._timeline.call_at(time, partial(self._start, place))

    def _start(self, place: int) -> None:
        result = self.results[place]
        result.arrival = self._timeline.time()
        self._gateway.submit(self._requests[place], result, partial(self._end, place))

    def _end(self, place: int) -> None:
        self._left -= 1
        for later in self._turns.get(place, ()):
            self._start_at(self._timeline.time() + self._requests[later].think, later)
        if self._ended is not None:
            self._ended(self.results[place])
