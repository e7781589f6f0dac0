from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError
from loadtests.suite import document
from loadtests.suite.case import Case, Done, Figures
from loadtests.suite.plan import HALF_SLOW, NOMINAL, Plan, arm
from loadtests.suite.report import report
from loadtests.suite.store import Store
from tests.loadtests.suite.made import VERSION, workload

PLAN = Plan([workload()], [arm("prefix_affinity"), arm("lmetric"), arm("random")], [1.0], VERSION)


def done(case: Case, figures: Figures) -> Done:
    return Done(
        key=case.key,
        kind=case.kind,
        workload=case.workload,
        trace="",
        fleet="",
        seed=case.seed,
        version="1",
        code="code",
        seconds=1.0,
        figures=figures,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Runs whose figures are given: ours 0.9 and 0.92, lmetric 0.8 and 0.86, random 0.1."""
    store = Store(tmp_path / "runs")
    [made] = PLAN.workloads
    slo = {"prefix_affinity": (0.90, 0.92), "lmetric": (0.80, 0.86), "random": (0.1, 0.1)}
    for seed in (1, 2):
        place = PLAN.place(made, seed)
        store.add(done(place.ceiling(NOMINAL), {"oracle_hit": 0.8, "infinite_hit": 0.9}))
        for each in PLAN.arms:
            share = slo[each.name][seed - 1]
            figures = {"slo": share, "hit": 0.4, "tpot_p95": 0.05, "slowdown_p99": 3.0}
            store.add(done(place.run(each, NOMINAL), figures))
            store.add(done(place.capacity(each, {}), {"load": share, "rate": 10 * share}))
    return store


def test_ours_is_held_against_the_best_rival_seed_by_seed(store: Store) -> None:
    text = report(PLAN, store)
    # 9 / 8 and 9.2 / 8.6: 12.5 % and 7.0 %.
    assert "| agents | capacity, requests/s | 9.10 ± 1.27 | 8.30 ± 3.81 | `lmetric` | +9.7" in text
    assert (
        "|  | in SLO at load 1, % | 91.0 ± 12.7 | 83.0 ± 38.1 | `lmetric` | +8.0 ± 25.4 |" in text
    )
    assert "| `random` | 1.00 ± 0.00 |" in text


def test_hits_are_told_as_a_part_of_the_oracles(store: Store) -> None:
    text = report(PLAN, store)
    assert "load 1; hits of one shared cache 80.0%, of an endless one 90.0%:" in text
    assert "| `lmetric` | 83.0 ± 38.1 | 40.0 ± 0.0 | 0.50 ± 0.00 | - |" in text


def test_what_was_not_run_is_left_out(store: Store) -> None:
    text = report(PLAN, store)
    assert HALF_SLOW in text
    assert f"in SLO, {HALF_SLOW}" not in text
    assert report(PLAN, Store(Path("nowhere"))).count("`lmetric`") == 0


def test_all_parameters_are_told(store: Store) -> None:
    text = report(PLAN, store)
    [made] = PLAN.workloads
    for part in (made.traces[0].digest, made.traces[1].digest, "theta_max: ", "kv_tokens: 3072000"):
        assert part in text


def test_runs_go_seed_by_seed_and_cover_every_fleet() -> None:
    cases = PLAN.runs()
    assert [case.seed for case in cases[:8]] == [1] * 4 + [2] * 4
    assert len({case.fleet_name for case in cases}) == 3
    assert len({case.key for case in cases}) == len(cases)


def test_the_search_for_a_capacity_begins_with_what_is_known(store: Store) -> None:
    known = [case.work.search.known for case in PLAN.searches(store)]
    assert known == [{1.0: True}, {1.0: False}, {1.0: False}] * 2 or known == [
        {1.0: True},
        {1.0: False},
        {1.0: False},
        {1.0: True},
        {1.0: False},
        {1.0: False},
    ]


def test_a_page_keeps_what_is_beside_its_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin x -->\nold\n<!-- end x -->\nafter\n")
    document.put(page, "x", "new\n")
    document.put(page, "x", "newer")
    assert page.read_text() == "before\n<!-- begin x -->\nnewer\n<!-- end x -->\nafter\n"
    with pytest.raises(ConfigError, match="begin y"):
        document.put(page, "y", "")
