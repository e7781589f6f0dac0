from __future__ import annotations

import json

from loadtests.replay import report
from loadtests.replay.comparison import Plan, compare
from loadtests.replay.metrics import Slo
from loadtests.replay.player import Mode
from loadtests.replay.trace import Trace
from tests.loadtests.replay.made import ROTATE, fleet, request, trace

PLAN = Plan(
    fleet=fleet(2),
    arms=[ROTATE],
    loads=[1.0, 2.0],
    seeds=[1, 2],
    modes=list(Mode),
    slo=Slo(),
    capacity=True,
)
MADE = trace(*(request(2.0 * n, [n % 4], tokens=900) for n in range(200)), notes=("a note",))


def source(seed: int) -> Trace:
    return MADE


COMPARISON = compare(source, PLAN)


def test_the_tables_name_trace_modes_loads_policies_and_capacity() -> None:
    lines = report.text(COMPARISON, PLAN).splitlines()
    assert lines[0].startswith("made: 200 requests in 398 s")
    assert lines[1] == "note: a note"
    for head in ("open loop, load x1", "open loop, load x2", "closed loop, load x1"):
        assert any(line.startswith(head) for line in lines)
    rows = [line for line in lines if line.startswith("scripted")]
    # Four tables, two side by side, and the capacity of both modes.
    assert len(rows) == 4 + 2 + 2
    assert rows[0].split()[1] == "100.0"
    assert "requests/s" in rows[-1]


def test_the_json_holds_what_it_takes_to_repeat_it() -> None:
    found = json.loads(report.json(COMPARISON, PLAN))
    assert found["trace"]["sha256"] == ["digest"]
    assert found["seeds"] == [1, 2]
    assert found["engines"]["profile"]["timing"]["base"] == 0.01
    assert found["slo"]["tpot"] == 0.1
    assert found["policies"]["scripted"]["scheduling"]["gate"] is None
    assert found["versions"]["prefixgate"]
    assert len(found["rows"]) == 4
    row = found["rows"][0]
    assert row["figures"]["slo"]["mean"] == 1
    assert len(row["runs"]) == 2
    assert row["runs"][0]["curve"][0]["from"] == 0
    assert len(found["capacities"]) == 2
