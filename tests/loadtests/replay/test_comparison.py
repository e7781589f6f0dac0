from __future__ import annotations

import pytest

from gateway.config import ConfigError
from loadtests.replay.arm import Arm
from loadtests.replay.arrivals import spread
from loadtests.replay.comparison import Comparison, Plan, compare
from loadtests.replay.metrics import Slo
from loadtests.replay.player import Mode
from loadtests.replay.trace import Trace
from tests.loadtests.replay.made import BLOCK, ROTATE, fleet, request, trace

MADE = trace(
    *(request(10.0 * n, [n % 3, 100 + n % 3], tokens=2 * BLOCK + 100) for n in range(1, 41))
)


def source(seed: int) -> Trace:
    return spread(MADE, seed)


def plan(**changes: object) -> Plan:
    other = Arm("other", ROTATE.policy_type, ROTATE.params, ROTATE.scheduling)
    settings: dict[str, object] = {
        "fleet": fleet(2),
        "arms": [ROTATE, other],
        "loads": [1.0, 2.0],
        "seeds": [1, 2, 3],
        "modes": [Mode.OPEN],
        "slo": Slo(),
    }
    return Plan(**(settings | changes))


def test_every_policy_is_run_under_every_load_with_every_seed() -> None:
    found = compare(source, plan())
    assert [(row.mode, row.load, row.arm) for row in found.rows] == [
        (Mode.OPEN, load, arm) for load in (1.0, 2.0) for arm in ("scripted", "other")
    ]
    for row in found.rows:
        assert len(row.runs) == 3
        hits = [run.figures["hit"] for run in row.runs]
        assert row.figures["hit"].mean == pytest.approx(sum(hits) / 3)
        assert row.figures["requests"].mean == pytest.approx(36, abs=1)
    assert found.capacities == []


def test_hits_are_held_against_what_caching_could_reach() -> None:
    row = compare(source, plan(loads=[1.0], fleet=fleet(1))).rows[0]
    # One engine is itself the shared cache; what is measured comes after the first of each prompt.
    assert row.figures["oracle_hit"].mean == pytest.approx(2 * BLOCK / (2 * BLOCK + 100))
    assert row.figures["hit_share"].mean == pytest.approx(1.0)
    row = compare(source, plan(loads=[1.0], fleet=fleet(1, kv_tokens=16 * BLOCK))).rows[0]
    assert row.figures["infinite_hit"].mean >= row.figures["oracle_hit"].mean


def test_processes_change_nothing_but_the_time() -> None:
    alone, together = compare(source, plan()), compare(source, plan(processes=2))
    assert rows(alone) == rows(together)


def rows(comparison: Comparison) -> list[dict[str, float]]:
    return [
        {name: value for name, value in run.figures.items() if value == value}
        for row in comparison.rows
        for run in row.runs
    ]


def test_both_modes_go_side_by_side() -> None:
    found = compare(source, plan(modes=list(Mode), loads=[1.0]))
    assert [row.mode for row in found.rows] == [Mode.OPEN, Mode.OPEN, Mode.CLOSED, Mode.CLOSED]
    assert any(request.parent is not None for request in found.traces[0].requests)


def test_the_capacity_is_a_rate() -> None:
    found = compare(source, plan(capacity=True, loads=[], arms=[ROTATE]))
    [capacity] = found.capacities
    assert found.rows == []
    assert len(capacity.loads) == 3
    assert capacity.load.mean > 1
    rate = sum(load * made.rate for load, made in zip(capacity.loads, found.traces, strict=True))
    assert capacity.rate.mean == pytest.approx(rate / 3)


def test_what_cannot_be_served_is_said_before() -> None:
    with pytest.raises(ConfigError, match="room for"):
        compare(lambda _: trace(request(0, tokens=10**6)), plan())
