"""Engines of unequal speed, and one that turns slow and says nothing."""

from __future__ import annotations

from loadtests.replay import source
from loadtests.replay.fleet import Fleet, SlowDown
from loadtests.replay.metrics import Slo, measured, metrics
from loadtests.scenarios.stage import ENGINES, Stage, fleet
from loadtests.scenarios.table import Figures

TITLE = "share within SLO (TTFT 2 s or 3 times cold, TPOT 100 ms) on unequal engines"
SECONDS = 450.0
SLOWER = 3.0
OURS = "prefix_affinity"
ARMS = (OURS, "lmetric", "llm_d_blend", "minimum_ttft")
HALVES = fleet(speeds=[1.0] * 4 + [0.5] * 4)
"""Half of them twice as slow."""
TURNED = fleet(slow_downs=(SlowDown(3, SECONDS / 3, SLOWER),))
"""One slows down in mid-run."""
FLEETS: dict[str, tuple[Fleet, float]] = {
    "four twice as slow": (HALVES, 6.2),
    "one turns slow": (TURNED, 8.5),
}
"""With conversations per second, about what the fleet can take."""


def run() -> dict[str, Figures]:
    rows: dict[str, Figures] = {}
    for name, (engines, rate) in FLEETS.items():
        trace = source.find(f"gen:chat?rate={rate}&seconds={SECONDS}")(1)
        for arm in ARMS:
            results = Stage(arm, engines).play(trace.requests)
            found = metrics(measured(results, SECONDS), ENGINES, Slo())
            names = ("slo", "hit", "ttft_p95", "tpot_p95", "slowdown_p99")
            rows[f"{arm}, {name}"] = {key: found[key] for key in names}
    return rows
