"""The load that each way takes, over traces, networks and paces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtests.disagg.tally import Tally
from loadtests.disagg.ways import Way, Wire, fronts
from loadtests.replay import jobs
from loadtests.replay.capacity import highest, holds
from loadtests.replay.fleet import Fleet
from loadtests.replay.metrics import Slo
from loadtests.replay.player import Player, Scenario
from loadtests.replay.trace import Trace
from loadtests.sim import profile as profiles

ENGINES = 8
KV_TOKENS = 3_072_000
RUNNING_TOKENS = 400_000
CHUNKS = (256, 512, 1024, 2048)
RATIOS = (2, 3, 4, 5, 6)
THRESHOLDS = (2048, 8192, 16_384)
"""Uncached tokens. The last suits these traces and three prefill engines well: the one to beat."""
STATIC_CHUNK = 512
"""Of decode engines under the fixed rules: it hardly matters where little is prefilled."""
OUR_CHUNK = {0.05: 512, 0.1: 768}
"""Of decode engines, by pace: ours prefills there what is short."""
AHEAD = 1.08
"""How much more load ours is to take than the best other on conversation."""
BEHIND = 0.98
"""What it is to take of the best other's at least, elsewhere."""


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        rate: requests per second at which 90 % are within the SLO.
        remote: share of the requests on two engines, at that load.
        moved: bytes of KV cache per request.
    """

    trace: str
    wire: Wire | None
    pace: float
    way: Way
    rate: float
    remote: float
    moved: float


@dataclass(slots=True, frozen=True)
class Search:
    """The highest load for one way."""

    trace: Trace
    wire: Wire
    pace: float
    way: Way

    def __call__(self) -> Row:
        slo, way, trace = Slo(tpot=self.pace), self.way, self.trace
        arm, fleet = way.arm(self.pace), way.fleet(engines())

        def enough(load: float) -> bool:
            scenario = Scenario(trace, fleet, load=load)
            return holds(scenario, arm, slo, fronts(way, self.wire, Tally()))

        load = highest(enough)
        tally = Tally()
        if way.prefill and load:
            scenario = Scenario(trace, fleet, load=load)
            Player(scenario, arm, front=fronts(way, self.wire, tally)).play()
        requests = tally.requests or 1
        return Row(
            trace=trace.name,
            wire=self.wire if way.prefill else None,
            pace=self.pace,
            way=way,
            rate=load * trace.rate,
            remote=tally.remote / requests,
            moved=tally.tokens * fleet.profile.memory.kv_bytes_per_token / requests,
        )


def engines() -> Fleet:
    profile = profiles.load(profiles.DEFAULT)
    profile = profile.replace(kv_tokens=KV_TOKENS, max_running_tokens=RUNNING_TOKENS)
    return Fleet(profile, (1.0,) * ENGINES)


def never() -> list[Way]:
    return [Way(0, chunk) for chunk in CHUNKS]


def handing_over(pace: float, ratios: Sequence[int]) -> list[Way]:
    """The ways that depend on the network."""
    fixed = [Way(count, STATIC_CHUNK, rule) for rule in (0, *THRESHOLDS) for count in ratios]
    chunk = OUR_CHUNK.get(pace, STATIC_CHUNK)
    return [*fixed, *(Way(count, chunk) for count in ratios)]


def compare(
    traces: Sequence[Trace],
    wires: Sequence[Wire],
    paces: Sequence[float],
    ratios: Sequence[int] = RATIOS,
    processes: int = 1,
) -> list[Row]:
    """All ways; those that hand nothing over once for all networks."""
    searches = [
        Search(trace, wire, pace, way)
        for trace in traces
        for pace in paces
        for wire, ways in (
            (wires[0], never()),
            *((wire, handing_over(pace, ratios)) for wire in wires),
        )
        for way in ways
    ]
    return jobs.run(searches, processes, "searches")


def cut(trace: Trace, seconds: float | None) -> Trace:
    """The begin of a trace."""
    if seconds is None:
        return trace
    return replace(trace, requests=[each for each in trace.requests if each.arrival < seconds])
