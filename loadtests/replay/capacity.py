"""How much load a fleet takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from types import MappingProxyType

from loadtests.replay.arm import Arm
from loadtests.replay.metrics import Slo, warm_up
from loadtests.replay.player import Front, Mode, Player, Scenario, single
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace
from loadtests.sim.engine import Engine
from loadtests.sim.timeline import Timeline

TARGET = 0.9
"""Share of the requests that must be within the SLO."""
PRECISION = 1.01
"""Ratio of the load that is too much to the one that is not, where the search ends."""
_STRIDE = 1.3
_LEAST, _MOST = 1 / 64, 64.0
_NOTHING: Mapping[float, bool] = MappingProxyType({})


def highest(
    holds: Callable[[float], bool],
    known: Mapping[float, bool] = _NOTHING,
    *,
    start: float = 1.0,
    stride: float = _STRIDE,
) -> float:
    """The highest load that holds, to 1 %: 0 when none does, infinity when all do.

    Args:
        holds: whether a load does; from some load on none must.
        known: the same for some loads, in place of asking.
        start: where to begin when nothing is known.
        stride: ratio of the loads that are tried from there.
    """
    # Chance may have a load hold above one that does not: the lowest that fails decides.
    high = min((load for load, held in known.items() if not held), default=inf)
    low = max((load for load, held in known.items() if held and load < high), default=0.0)
    if not known:
        low, high = (start, inf) if holds(start) else (0.0, start)
    while high == inf:
        if not holds(load := low * stride):
            high = load
        elif load > _MOST:
            return inf
        else:
            low = load
    while low == 0.0:
        if holds(load := high / stride):
            low = load
        elif load < _LEAST:
            return 0.0
        else:
            high = load
    while high / low > PRECISION:
        middle = sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def holds(
    scenario: Scenario,
    arm: Arm,
    slo: Slo,
    front: Callable[[Sequence[Engine], Arm, Trace, Timeline], Front] = single,
) -> bool:
    """Whether at least `TARGET` of the measured requests are within the SLO.

    Which are measured follows from their arrivals in open loop, in both modes. A run ends as soon
    as so many have missed, or wait and are late already, that the others no longer matter; in open
    loop also as soon as enough are within.
    """
    begin = warm_up(scenario.span)
    counted = sum(request.arrival / scenario.load >= begin for request in scenario.trace.requests)
    allowed = counted * (1 - TARGET)
    missed = met = 0

    def ended(result: Result) -> None:
        nonlocal missed, met
        if result.arrival >= begin:
            within = slo.met(result)
            met += within
            missed += not within

    def enough() -> bool:
        return scenario.mode is Mode.OPEN and met >= counted - allowed

    player = Player(scenario, arm, ended, front)

    def late(now: float) -> int:
        """Of those without a first token, or an end. In closed loop it is not known yet when some
        will arrive."""
        if scenario.mode is Mode.CLOSED:
            return 0
        return sum(
            result.first is None
            and result.refusal is None
            and result.arrival + slo.due(result) < now
            for result in player.results
            if begin <= result.arrival < now
        )

    player.play(wanted=lambda now: not enough() and missed + late(now) <= allowed)
    return enough() or missed + late(inf) <= allowed
