"""One of four engines is killed under steady load, and comes back on its port."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from gateway.config import Health
from loadtests.chaos import journal
from loadtests.chaos.client import Client, End, Seen
from loadtests.chaos.faults import Fault
from loadtests.chaos.fleet import Fleet, Handle
from loadtests.chaos.gateway import Gateway
from loadtests.chaos.mix import patient
from loadtests.chaos.verdict import Violations, check_answer, check_log, check_runs, hideable
from loadtests.process import ProcessError, Processes

_POLL = 0.02
_UNTIL_GONE = 30.0


@dataclass(slots=True, frozen=True)
class Kill:
    """
    Attributes:
        rate: requests per second, at random times.
        before, dead, after: seconds until the engine is killed, until it is started again, and
            from when it serves again to the end.
        first_token: seconds until the engines' answers begin, on average.
        probe_interval: seconds.
    """

    engines: int = 4
    rate: float = 200.0
    before: float = 5.0
    dead: float = 6.0
    after: float = 3.0
    first_token: float = 0.4
    probe_interval: float = Health().interval
    seed: int = 4


@dataclass(slots=True, frozen=True)
class Killed:
    """
    Attributes:
        failed: requests that failed, by how.
        hidden: of those, the ones that a retry could have saved.
        noticed: seconds from the kill until nothing more was sent there.
        back: seconds from when it listened again until it was let in.
        serving: the same, until it got a request.
        retries: that the gateway made.
    """

    plan: Kill
    requests: int
    failed: Counter[str]
    hidden: list[Seen]
    noticed: float
    back: float
    serving: float
    retries: int
    violations: Violations

    @property
    def kept(self) -> bool:
        return (
            not self.hidden
            and not self.violations
            and self.back <= self.plan.probe_interval + _POLL
        )


def run(plan: Kill) -> Killed:
    """
    Raises:
        ProcessError: a process did not start, or the gateway ended, or it never saw what happened.
    """
    with TemporaryDirectory(prefix="prefixgate-kill-") as name, Processes() as processes:
        directory = Path(name)
        with Fleet(plan.engines, directory, plan.seed, plan.first_token) as fleet:
            settings = {"health": {"interval": plan.probe_interval}}
            gateway = Gateway(processes, directory, fleet.urls, settings)
            return asyncio.run(_run(plan, fleet, gateway))


async def _run(plan: Kill, fleet: Fleet, gateway: Gateway) -> Killed:
    client, violations = Client(gateway.port), Violations()
    sending = asyncio.create_task(_send(plan, client))
    victim = fleet.engines[0]
    await asyncio.sleep(plan.before)
    killed = time.monotonic()
    victim.begin(Fault.KILL)
    noticed = await _until(gateway, victim, "healthy", False) - killed
    await asyncio.sleep(plan.dead)
    victim.end()
    await asyncio.to_thread(victim.wait_up)
    up = time.monotonic()
    back = await _until(gateway, victim, "healthy", True) - up
    await asyncio.sleep(plan.after)
    sending.cancel()
    seen = await sending
    client.close()
    for each in seen:
        check_answer(each, violations)
    counted = gateway.metrics().by("prefixgate_requests_total", "outcome")
    check_log(seen, gateway.access_log(len(seen)), counted, violations)
    deeds = journal.read(engine.journal for engine in fleet.engines)
    check_runs(seen, deeds, violations)
    for line in gateway.complaints():
        violations.add("errors in the gateway's log", line)
    reborn = victim.incarnations[-1]
    first = min(
        (run.began for runs in deeds.runs.values() for run in runs if run.incarnation == reborn),
        default=float("inf"),
    )
    return Killed(
        plan,
        len(seen),
        Counter(text for each in seen if (text := _failure(each)) is not None),
        hideable(seen, deeds, fleet.engines),
        noticed,
        back,
        first - up,
        int(gateway.metrics().total("prefixgate_retries_total")),
        violations,
    )


async def _send(plan: Kill, client: Client) -> list[Seen]:
    """Requests at the plan's rate, whatever becomes of them, until it is cancelled.

    Returns:
        What their clients saw, once all of them have ended.
    """
    random, loop = Random(plan.seed), asyncio.get_running_loop()
    tasks: list[asyncio.Task[Seen]] = []
    due = loop.time()
    try:
        for demand in patient(plan.seed):
            due += random.expovariate(plan.rate)
            await asyncio.sleep(due - loop.time())
            tasks.append(loop.create_task(client.send(demand)))
    except asyncio.CancelledError:
        pass
    return list(await asyncio.gather(*tasks))


async def _until(gateway: Gateway, engine: Handle, state: str, is_so: bool) -> float:
    """Wait until the gateway has an engine in a state, or has it no longer.

    Returns:
        When that was seen, seconds of `time.monotonic`.

    Raises:
        ProcessError: it never was.
    """
    deadline = time.monotonic() + _UNTIL_GONE
    while ((await asyncio.to_thread(gateway.states))[engine.url] == state) is not is_so:
        if time.monotonic() > deadline:
            raise ProcessError(f"the gateway has not seen in {_UNTIL_GONE:g} s what happened")
        await asyncio.sleep(_POLL)
    return time.monotonic()


def _failure(seen: Seen) -> str | None:
    """How a request failed, as far as its client can tell; None when it did not."""
    error = seen.reading.error
    if seen.ended_by is End.WHOLE and error is None:
        return None
    place = "after the first token" if seen.reading.tokens else "before the first token"
    return f"{seen.status} {error.code if error is not None else seen.ended_by} {place}"


def table(killed: Killed) -> str:
    """Markdown."""
    plan = killed.plan
    failed = "; ".join(f"{count} x {how}" for how, count in killed.failed.most_common())
    rows = [
        ("requests", f"{killed.requests}, {plan.rate:g} a second over {plan.engines} engines"),
        ("failed", failed or "none"),
        ("of those, a retry could have hidden", f"{len(killed.hidden)}"),
        ("retries", f"{killed.retries}"),
        ("from the kill until it was put out", f"{killed.noticed:.2f} s"),
        (
            f"from its return until it was let in (probed every {plan.probe_interval:g} s)",
            f"{killed.back:.2f} s",
        ),
        ("from its return to its first request", f"{killed.serving:.2f} s"),
        ("violations", "; ".join(killed.violations.lines()) or "none"),
    ]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)])
