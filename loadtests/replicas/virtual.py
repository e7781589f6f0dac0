"""One gateway against several in virtual time, with and without what they tell each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.config import Scheduling
from loadtests.replay import arm, jobs, source
from loadtests.replay.fleet import Fleet
from loadtests.replay.metrics import Slo, measured, metrics, warm_up
from loadtests.replay.player import Mode, Player, Scenario
from loadtests.replay.sessions import link
from loadtests.replicas import follow_ups
from loadtests.replicas.bodies import Bodies
from loadtests.replicas.sharing import ARMS, SHARED, Sharing
from loadtests.replicas.tally import Tally
from loadtests.scenarios.stage import fleet

REPLICAS = (1, 2, 4, 8)
POLICY = "prefix_affinity"
CONVERSATION = "conversation_trace.jsonl.gz"
SESSIONS = "gen:chat?rate=9&seconds=900"
"""Conversations of five turns on average: about what eight engines can take."""


@dataclass(slots=True, frozen=True)
class Workload:
    """
    Attributes:
        source: as `prefixgate replay` takes it.
        mode: open for what was recorded, closed for what was made.
    """

    name: str
    source: str
    mode: Mode


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        figures: by name, one for each seed.
    """

    workload: str
    replicas: int
    sharing: Sharing
    figures: Mapping[str, Sequence[float]]


def workloads(traces: Path | None) -> list[Workload]:
    """
    Args:
        traces: directory of Mooncake's conversation trace; without it there are the made-up
            sessions only.
    """
    found = [Workload("sessions", SESSIONS, Mode.CLOSED)]
    if traces is not None:
        found.insert(0, Workload("conversation", str(traces / CONVERSATION), Mode.OPEN))
    return found


def run(
    workload: Workload,
    replicas: Sequence[int] = REPLICAS,
    sharings: Sequence[Sharing] = ARMS,
    seeds: int = 1,
    processes: int = 1,
    engines: Fleet | None = None,
) -> list[Row]:
    """All arms. A single replica has nobody to share with and is played once.

    Raises:
        ConfigError: the source cannot be read.
    """
    of, engines = source.find(workload.source), engines or fleet()
    traces = [link(of(seed), engines.profile) for seed in range(1, seeds + 1)]
    scenarios = [Scenario(trace, engines, workload.mode) for trace in traces]
    settings = [
        (count, sharing) for count in replicas for sharing in (sharings if count > 1 else (SHARED,))
    ]
    runs = jobs.run(
        [
            Course(scenario, count, sharing, seed)
            for count, sharing in settings
            for seed, scenario in enumerate(scenarios, 1)
        ],
        processes,
        f"{workload.name}: runs",
    )
    rows = []
    for at, (count, sharing) in enumerate(settings):
        own = runs[at * seeds : (at + 1) * seeds]
        figures = {name: [figures[name] for figures in own] for name in own[0]}
        rows.append(Row(workload.name, count, sharing, figures))
    return rows


@dataclass(slots=True, frozen=True)
class Course:
    """One run, and its figures."""

    scenario: Scenario
    replicas: int
    sharing: Sharing
    seed: int

    def __call__(self) -> dict[str, float]:
        scenario = self.scenario
        tally = Tally()
        front = partial(
            Bodies, replicas=self.replicas, sharing=self.sharing, seed=self.seed, tally=tally
        )
        player = Player(scenario, arm.find(POLICY, Scheduling()), front=front)
        player.play()
        trace, begin = scenario.trace, warm_up(scenario.span)
        reusable = follow_ups.reusable(trace)
        engines = len(scenario.fleet.speeds)
        return {
            **metrics(measured(player.results, scenario.span), engines, Slo()),
            "follow_ups": follow_ups.hit_share(trace, player.results, reusable, begin),
            "in_flight": tally.highest / tally.mean,
            "all_requests": len(trace.requests),
            "records": tally.records.total(),
            "bytes": tally.bytes.total(),
        }
