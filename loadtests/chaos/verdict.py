"""What must hold of a run, each looked at from two sides: what clients saw and what others say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from loadtests.chaos.client import End, Seen
from loadtests.chaos.fleet import Handle
from loadtests.chaos.gateway import AccessLine
from loadtests.chaos.journal import Deeds, Step
from loadtests.chaos.mix import Kind

MAX_ATTEMPTS = 3
"""A request's first and its retries, as the gateway's defaults have it."""
_SHOWN = 5
_TIME_LIMITS = ("timeout", "hung")
"""How the codes of errors end that are about time."""
_REJECTED = "overloaded_error"
_ANY_FAILURE = frozenset({"upstream_error", "timeout"})
_ANY = frozenset({*_ANY_FAILURE, "cancelled", "ok", "backpressure", "rejected", "client_error"})


class Violations:
    """By what was violated; of each, some examples are kept."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, what: str, example: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= _SHOWN:
            self._examples[what].append(example)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def lines(self) -> list[str]:
        return [
            f"{what}: {count} ({'; '.join(self._examples[what])})"
            for what, count in self._counts.items()
        ]


def outcomes_for(seen: Seen) -> Collection[str]:
    """The outcomes that the gateway may have counted where a client saw this."""
    reading = seen.reading
    if seen.ended_by is End.LEFT:
        return {"ok"} if reading.done and reading.error is None else _ANY
    if seen.ended_by is not End.WHOLE:
        return _ANY_FAILURE
    error = reading.error
    if error is None:
        return {"ok"}
    code = str(error.code or "")
    if seen.status == 200:
        if not reading.error_is_ours:
            return {"upstream_error"}
        if error.type == _REJECTED:
            return {"rejected"}
        if seen.reading.tokens == 0:
            return {*_ANY_FAILURE, "backpressure"}  # a refusal that came after comments
        return {"timeout"} if code.endswith(_TIME_LIMITS) else {"upstream_error"}
    if error.type == _REJECTED:
        return {"rejected"}
    if seen.status in (429, 503):
        return {"backpressure"}
    if seen.status == 504:
        return {"timeout"}
    return {"upstream_error"} if seen.status >= 500 else {"client_error"}


def check_answer(seen: Seen, violations: Violations) -> None:
    """One request by itself, as its client saw it."""
    demand, reading = seen.demand, seen.reading
    where = f"{demand.name} ({demand.kind}, {seen.status}, {seen.ended_by})"
    if reading.flaw is not None:
        violations.add("answers with what must not be in them", f"{where}: {reading.flaw}")
    if seen.ended_by in (End.NEVER, End.NOTHING):
        violations.add("requests without an answer", where)
    if seen.ended_by is End.WHOLE:
        if demand.kind is Kind.WRONG:
            if not 400 <= seen.status < 500:
                violations.add("wrong requests that were not refused", where)
        elif reading.error is None and (
            seen.status != 200
            or reading.tokens != demand.tokens
            or reading.done is not (demand.kind is Kind.STREAM)
        ):
            violations.add("answers that end cleanly too soon", f"{where}: {reading.tokens} tokens")
        if seen.status == 200 and not reading.at_boundary:
            violations.add("streams that end inside an event", where)
    elif reading.done and seen.ended_by is End.BROKEN:
        violations.add("streams broken off after [DONE]", where)
    if reading.done and reading.error is None and reading.tokens != demand.tokens:
        violations.add("[DONE] before the end", f"{where}: {reading.tokens} tokens")


def check_log(
    seen: Sequence[Seen],
    log: Iterable[AccessLine],
    counted: Mapping[str, float],
    violations: Violations,
) -> Counter[str]:
    """Every request has one line in the access log, of the outcome that its client saw.

    Args:
        counted: the gateway's counter, by outcome.

    Returns:
        How many requests had each outcome.
    """
    lines: dict[str, AccessLine] = {}
    for line in log:
        if line.id in lines:
            violations.add("requests with two outcomes", line.id)
        lines[line.id] = line
    outcomes = Counter(str(line.outcome) for line in lines.values())
    if len(lines) != len(seen):
        violations.add("requests and outcomes differ", f"{len(seen)} sent, {len(lines)} logged")
    found = {name: int(count) for name, count in counted.items() if count}
    if found != dict(outcomes):
        violations.add("counters and log differ", f"counted {found}, logged {dict(outcomes)}")
    for name in ("None", "internal_error"):
        if outcomes[name]:
            violations.add("failures inside the gateway", f"{outcomes[name]} of outcome {name}")
    unknown = dict(lines)
    for each in seen:
        if not each.id:
            if each.ended_by is not End.LEFT:
                violations.add("answers without an id", each.demand.name)
            continue
        own = unknown.pop(each.id, None)
        if own is None:
            violations.add("answers that are not in the log", each.demand.name)
        elif own.outcome not in outcomes_for(each):
            violations.add(
                "clients and log differ",
                f"{each.demand.name} ({each.status}, {each.ended_by}, error"
                f" {each.reading.error}) is {own.outcome}",
            )
    without = sum(not each.id for each in seen)
    if len(unknown) != without:
        violations.add("log lines that belong to nobody", f"{len(unknown)}, {without} left early")
    return outcomes


def check_runs(seen: Sequence[Seen], deeds: Deeds, violations: Violations) -> None:
    """Nothing runs a second time once an engine has sent what its client gets at once."""
    for each in seen:
        runs = deeds.runs.get(each.demand.name, [])
        for run in runs[:-1]:
            if Step.BEGUN in run.steps:
                places = ", ".join(f"{r.incarnation} {[str(s) for s in r.steps]}" for r in runs)
                violations.add(
                    "requests run again after their answer began", f"{each.demand.name}: {places}"
                )
        engines = [run.incarnation.partition(".")[0] for run in runs]
        # Once more at the same engine: a connection that was kept may be closed just as it is used.
        if len({*engines}) > MAX_ATTEMPTS or any(engines.count(name) > 2 for name in engines):
            violations.add("requests run too often", f"{each.demand.name}: {' '.join(engines)}")


def hideable(seen: Sequence[Seen], deeds: Deeds, engines: Sequence[Handle]) -> list[Seen]:
    """Errors that clients saw although another try could have served them.

    That is: with nothing of an answer at the client, no part of a whole one sent, by no time limit,
    with tries left and a well engine at hand all the time which had not been asked.
    """
    return [each for each in seen if _could_be_hidden(each, deeds, engines)]


def _could_be_hidden(seen: Seen, deeds: Deeds, engines: Sequence[Handle]) -> bool:
    if seen.ended_by is End.LEFT or seen.demand.kind is Kind.WRONG:
        return False
    failed = seen.ended_by is not End.WHOLE or seen.reading.error is not None
    if not failed or seen.reading.begun or not seen.reading.at_boundary:
        return False
    error = seen.reading.error
    if seen.status == 504 or (error is not None and str(error.code).endswith(_TIME_LIMITS)):
        return False
    if error is not None and error.type == _REJECTED:
        return False  # it was never sent anywhere
    runs = deeds.runs.get(seen.demand.name, [])
    if len(runs) >= MAX_ATTEMPTS or any({Step.PART, Step.BEGUN} & {*run.steps} for run in runs):
        return False
    asked = {run.incarnation.partition(".")[0] for run in runs}
    return any(
        f"e{engine.number}" not in asked and engine.well(seen.sent - 1.0, seen.ended)
        for engine in engines
    )
