"""A verdict finds what it looks for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtests.chaos import answers
from loadtests.chaos.answers import Ask
from loadtests.chaos.client import End, Seen
from loadtests.chaos.faults import Fault
from loadtests.chaos.fleet import Handle
from loadtests.chaos.gateway import AccessLine, Rest
from loadtests.chaos.journal import Deeds, Run, Step
from loadtests.chaos.mix import Demand, Kind
from loadtests.chaos.reading import Reading
from loadtests.chaos.verdict import Violations, check_answer, check_log, check_runs, hideable

STREAM = list(answers.events(Ask("r1", True, 2), "e0.0", 40))


def seen(events: list[bytes], ended_by: End = End.WHOLE, status: int = 200, **more: Any) -> Seen:
    demand = Demand("r1", Kind.STREAM, "/v1/chat/completions", "", b"", 2, None)
    reading = Reading("r1")
    if status == 200:
        reading.stream(b"".join(events))
    elif events:
        reading.whole(b"".join(events))
    fields = {"id": "g-1", "sent": 10.0, "ended": 11.0} | more
    return Seen(demand, reading, status=status, ended_by=ended_by, **fields)


REFUSED = seen([answers.error(429)], status=429)


def found(*checked: Seen) -> list[str]:
    violations = Violations()
    for each in checked:
        check_answer(each, violations)
    return [line.partition(":")[0] for line in violations.lines()]


@pytest.mark.parametrize(
    ("each", "violation"),
    [
        (seen(STREAM), None),
        (seen(STREAM[:2], End.BROKEN), None),
        (seen(STREAM[:2], End.LEFT), None),
        (REFUSED, None),
        (seen(STREAM[:2]), "answers that end cleanly too soon"),
        (seen([]), "answers that end cleanly too soon"),
        (seen(STREAM, End.BROKEN), "streams broken off after [DONE]"),
        (seen([STREAM[0], STREAM[1][:9]]), "answers that end cleanly too soon"),
        (seen([], End.NOTHING, 0), "requests without an answer"),
        (seen([], End.NEVER), "requests without an answer"),
        (seen([STREAM[0], STREAM[-1]], End.LEFT), "[DONE] before the end"),
        (seen([*STREAM[:2], STREAM[1]], End.LEFT), "answers with what must not be in them"),
    ],
)
def test_answers(each: Seen, violation: str | None) -> None:
    assert (found(each)[:1] or [None]) == [violation]


def log(each: Seen, *lines: AccessLine, counted: dict[str, float]) -> list[str]:
    violations = Violations()
    check_log([each], lines, counted, violations)
    return [line.partition(":")[0] for line in violations.lines()]


def test_clients_log_and_counters_must_agree() -> None:
    ok = AccessLine("g-1", "ok", 200)
    assert log(seen(STREAM), ok, counted={"ok": 1}) == []
    assert log(seen(STREAM), ok, counted={"ok": 2}) == ["counters and log differ"]
    assert "requests with two outcomes" in log(seen(STREAM), ok, ok, counted={"ok": 2})
    failed = AccessLine("g-1", "timeout", 200)
    assert log(seen(STREAM), failed, counted={"timeout": 1}) == ["clients and log differ"]
    other = AccessLine("g-2", "ok", 200)
    assert "answers that are not in the log" in log(seen(STREAM), other, counted={"ok": 1})
    assert "requests and outcomes differ" in log(seen(STREAM), counted={})
    inside = AccessLine("g-1", "internal_error", 500)
    assert "failures inside the gateway" in log(REFUSED, inside, counted={"internal_error": 1})


def test_leaving_after_done_is_no_cancellation() -> None:
    cancelled = AccessLine("g-1", "cancelled", 200)
    assert log(seen(STREAM, End.LEFT), cancelled, counted={"cancelled": 1}) == [
        "clients and log differ"
    ]
    assert log(seen(STREAM[:2], End.LEFT), cancelled, counted={"cancelled": 1}) == []


def deeds(*runs: tuple[str, list[Step]]) -> Deeds:
    return Deeds({"r1": [Run(at, name, steps) for at, (name, steps) in enumerate(runs)]}, Counter())


@pytest.mark.parametrize(
    ("did", "kept"),
    [
        (deeds(("e0.0", [Step.GOT]), ("e1.0", [Step.GOT, Step.BEGUN, Step.DONE])), True),
        (deeds(("e0.0", [Step.GOT, Step.BEGUN]), ("e1.0", [Step.GOT])), False),
        (deeds(*((f"e{n}.0", [Step.GOT]) for n in range(4))), False),
        (deeds(*(("e0.0", [Step.GOT]) for _ in range(3))), False),
    ],
)
def test_runs(did: Deeds, kept: bool) -> None:
    violations = Violations()
    check_runs([seen(STREAM)], did, violations)
    assert bool(violations) is not kept


def test_what_a_retry_could_have_hidden(tmp_path: Path) -> None:
    well, asked = Handle(1, 0, tmp_path, 0, 0.0), Handle(0, 0, tmp_path, 0, 0.0)
    refused = deeds(("e0.0", [Step.GOT]))
    assert hideable([REFUSED], refused, [asked, well]) == [REFUSED]
    assert hideable([REFUSED], refused, [asked]) == []
    begun = deeds(("e0.0", [Step.GOT, Step.BEGUN]))
    assert hideable([REFUSED], begun, [asked, well]) == []
    thrice = deeds(*((f"e{n}.0", [Step.GOT]) for n in (0, 2, 3)))
    assert hideable([REFUSED], thrice, [asked, well]) == []
    assert hideable([seen(STREAM[:2], End.BROKEN)], refused, [asked, well]) == []
    late = b'{"error":{"type":"upstream_error","code":"first_byte_timeout"}}'
    assert hideable([seen([late], status=504)], refused, [asked, well]) == []


def test_an_engine_is_well_when_nothing_was_wrong_in_that_time(tmp_path: Path) -> None:
    engine = Handle(0, 0, tmp_path, 0, 0.0)
    assert engine.well(0.0, 1e9)
    assert engine.fault is None
    with pytest.raises(AssertionError):
        engine.begin(Fault.SLOW)  # there is no process
    assert engine.fault is Fault.SLOW
    begin = engine.spans[0].begin
    assert engine.well(begin - 2, begin - 1)
    assert not engine.well(begin - 1, begin + 1)


def test_what_is_left_over() -> None:
    base = Rest({"live requests": 0}, 20)
    assert Rest({"live requests": 0}, 19).left_over(base) == []
    assert Rest({"live requests": 2}, 23).left_over(base) == [
        "2 live requests",
        "3 more descriptors than at first",
    ]
