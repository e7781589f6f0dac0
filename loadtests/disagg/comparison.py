"""The load that each way takes, over traces, networks and paces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtests.disagg.rows import Row, means
from loadtests.disagg.tally import Tally
from loadtests.disagg.ways import Way, Wire, fronts
from loadtests.replay import jobs
from loadtests.replay.capacity import highest, holds
from loadtests.replay.fleet import Fleet
from loadtests.replay.metrics import Slo, measured
from loadtests.replay.player import Player, Scenario
from loadtests.replay.trace import Trace
from loadtests.sim import profile as profiles

ENGINES = 8
KV_TOKENS = 3_072_000
RUNNING_TOKENS = 400_000
CHUNKS = (512, 1024, 256, 2048)
RATIOS = (2, 3, 4, 5, 6)
THRESHOLDS = (2048, 8192, 16_384)
"""Uncached tokens. The last suits these traces and three prefill engines well: the one to beat."""
STATIC_CHUNK = 512
"""Of decode engines under the fixed rules: it hardly matters where little is prefilled."""
OUR_CHUNK = 512
"""The same."""
AHEAD = 1.08
"""How much more load ours is to take than the best other on conversation."""
BEHIND = 0.98
"""What it is to take of the best other's at least, elsewhere."""


START = 1.2
"""Load, in times the recorded one, at which searches begin: most end not far from it."""
STRIDE = 1.1


@dataclass(slots=True, frozen=True)
class Contest:
    """The highest load for each of some ways, or only for the best of them: to see that another is
    no better takes one play, and not a search.

    Attributes:
        exact: for each.
    """

    trace: Trace
    wire: Wire
    pace: float
    ways: Sequence[Way]
    exact: bool

    def __call__(self) -> list[Row]:
        rows: list[Row] = []
        best, start = 0.0, START
        for way in self.ways:
            search = _Search(self.trace, self.wire, self.pace, way)
            if self.exact or not best:
                load = highest(search.holds, start=start, stride=STRIDE)
            elif search.holds(best):
                load = highest(search.holds, {best: True}, stride=STRIDE)
            else:
                rows.append(search.row(best, at_most=True))
                continue
            rows.append(search.row(load))
            best = max(best, load)
            start = load or START
        return rows


class _Search:
    """One way, and what it handed over at the last load that it took."""

    def __init__(self, trace: Trace, wire: Wire, pace: float, way: Way) -> None:
        self._trace = trace
        self._wire = wire
        self._pace = pace
        self._way = way
        self._tally = Tally()

    def holds(self, load: float) -> bool:
        way, tally = self._way, Tally()
        scenario = Scenario(self._trace, way.fleet(engines()), load=load)
        slo = Slo(tpot=self._pace)
        held = holds(scenario, way.arm(self._pace), slo, fronts(way, self._wire, tally))
        if held:
            self._tally = tally
        return held

    def row(self, load: float, *, at_most: bool = False) -> Row:
        way, trace = self._way, self._trace
        return _row(trace, self._wire, self._pace, way, load, self._tally, at_most=at_most)


@dataclass(slots=True, frozen=True)
class Round:
    """Each of some ways once, at one load."""

    trace: Trace
    wire: Wire
    pace: float
    ways: Sequence[Way]
    load: float

    def __call__(self) -> list[Row]:
        return [self._play(way) for way in self.ways]

    def _play(self, way: Way) -> Row:
        tally, slo = Tally(), Slo(tpot=self.pace)
        scenario = Scenario(self.trace, way.fleet(engines()), load=self.load)
        player = Player(scenario, way.arm(self.pace), front=fronts(way, self.wire, tally))
        player.play()
        share = fmean(map(slo.met, measured(player.results, scenario.span)))
        return _row(self.trace, self.wire, self.pace, way, self.load, tally, share=share)


def _row(
    trace: Trace,
    wire: Wire,
    pace: float,
    way: Way,
    load: float,
    tally: Tally,
    *,
    share: float | None = None,
    at_most: bool = False,
) -> Row:
    requests = tally.requests or 1
    return Row(
        trace=trace.name,
        wire=wire if way.prefill else None,
        pace=pace,
        way=way,
        rate=load * trace.rate,
        remote=tally.remote / requests,
        moved=tally.tokens * engines().profile.memory.kv_bytes_per_token / requests,
        share=share,
        at_most=at_most,
    )


def engines() -> Fleet:
    profile = profiles.load(profiles.DEFAULT)
    profile = profile.replace(kv_tokens=KV_TOKENS, max_running_tokens=RUNNING_TOKENS)
    return Fleet(profile, (1.0,) * ENGINES)


def never() -> list[Way]:
    return [Way(0, chunk) for chunk in CHUNKS]


def fixed(count: int) -> list[Way]:
    """Rules for so many prefill engines, the one that is hardest to beat first."""
    joint = [Way(count, STATIC_CHUNK, least) for least in sorted(THRESHOLDS, reverse=True)]
    apart = [Way(count, STATIC_CHUNK, least, joint=False) for least in (*THRESHOLDS, 0)]
    return [*joint, *apart]


def options() -> list[str]:
    """The ways by which a comparison can be restricted."""
    ways = [*never(), *fixed(RATIOS[0]), Way(RATIOS[0], OUR_CHUNK)]
    return list(dict.fromkeys(way.option for way in ways))


def compare(
    traces: Sequence[Trace],
    wires: Sequence[Wire],
    paces: Sequence[float],
    ratios: Sequence[int] = RATIOS,
    processes: int = 1,
    *,
    exact: bool = False,
    only: Collection[str] = (),
    at: float | None = None,
) -> list[Row]:
    """All ways; those that hand nothing over once for all networks. Means over the traces of one
    name.

    Args:
        exact: search for the load that each way takes, and not only the best of those that never
            hand over and of the fixed rules for each number of prefill engines. To be set where
            several traces have one name: bounds of different ways have no mean that could be
            compared.
        only: of `options`, the ways to play; all when empty.
        at: play each way once at so many times the trace's own rate, and search for nothing.
    """
    settings = [
        (trace, wire, pace, [way for way in ways if not only or way.option in only])
        for trace in traces
        for pace in paces
        for wire, ways in (
            (wires[0], never()),
            *(
                (wire, ways)
                for wire in wires
                for count in ratios
                for ways in (fixed(count), [Way(count, OUR_CHUNK)])
            ),
        )
    ]
    contests = [
        Contest(*setting, exact) if at is None else Round(*setting, at) for setting in settings
    ]
    found = jobs.run(contests, processes, "contests")
    return means([row for rows in found for row in rows])
