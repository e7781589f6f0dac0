"""What a decision costs: CPU of everything between a known prompt and its lease, and of giving the
lease back.

    python -m loadtests.decision

A measurement, for a quiet machine. Times are of this process alone, on a clock that stands still.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from statistics import median
from time import process_time_ns

from gateway.config import ClassLimits, PrefillLimits, Scheduling
from gateway.prefix.blocks import BlockScale
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.classify import appraise
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.streams import OutputLengths
from gateway.scheduling.ticket import Refusal, Ticket
from gateway.types import HASH_BYTES, NO_MATCH, Chain, Decision, Reason, Role, WorkClass
from policies.base import RouteRequest
from policies.registry import build

BLOCKS = 250
BLOCK_TOKENS = 32
CONVERSATIONS = 200
"""They share the first quarter; two backends hold each."""
STREAMS = 4
"""Requests that decode at each backend meanwhile, as far as their pace asks for: in the row of
those that are held they cannot bear a long prefill, in the others they can."""
LONG = 50_000
"""Prompt tokens that close a gate."""


class Bench:
    """A pool, an index, and backends at work."""

    def __init__(self, backends: int, made: int = 1000) -> None:
        self._made = made
        self._lengths = OutputLengths()
        self._random = Random(1)
        shared = self._blocks(BLOCKS // 4)
        self._chains = [shared + self._blocks(BLOCKS - BLOCKS // 4) for _ in range(CONVERSATIONS)]
        self._index = PrefixIndex(BlockScale.uniform(BLOCK_TOKENS * 4), 2_000_000)
        loads = [BackendLoad(f"http://10.0.{n // 256}.{n % 256}:8000") for n in range(backends)]
        for load in loads:
            self._index.add_backend(load.id, load.capacity_tokens)
        for chain in self._chains:
            for load in self._random.sample(loads, 2):
                self._index.confirm(self._index.book(load.id, chain))
        limits = {"max_waiting": 10_000, "max_waiting_tokens": 10**9, "max_wait": 86_400}
        scheduling = Scheduling(
            prefill=PrefillLimits(**limits), decode=ClassLimits(**limits), ranges=()
        )
        self.pool = Pool("m", Role.UNIFIED, build("prefix_affinity", {}), scheduling, _clock)
        self.pool.set_backends(loads)
        for load in loads:
            for _ in range(STREAMS):
                self.stream(_lease(load, 2_000, 0.0, self._lengths))
        self.granted: list[Lease] = []

    def stream(self, lease: Lease) -> None:
        """Its first token has come, and by now so many others."""
        lease.progress = lambda: self._made
        lease.first_token()

    def hold(self, tickets: int) -> list[Lease]:
        """Close all gates, and let tickets wait behind them.

        Returns:
            What closes the gates, one lease at each backend.
        """
        closing = [_lease(load, LONG, 5.0) for load in self.pool.backends]
        while self.pool.depth(WorkClass.PREFILL) + self.pool.depth(WorkClass.DECODE) < tickets:
            self.submit(NO_MATCH_SHARE)
        return closing

    def fill(self, tickets: int) -> None:
        """Let long prompts wait for the streams' sake."""
        while self.pool.depth(WorkClass.PREFILL) < tickets:
            self.submit(1.0, LONG)

    def submit(
        self, cold_share: float = 0.0, tokens: int = BLOCKS * BLOCK_TOKENS + 100
    ) -> tuple[Ticket, Lease | None]:
        """What the live gateway does with a prompt whose chain is known."""
        chain = self._random.choice(self._chains)
        cold = cold_share > 0.0 and self._random.random() < cold_share
        match = NO_MATCH if cold else self._index.match(chain)
        request = RouteRequest("m", chain, tokens, 300, match, now=_clock())
        request = appraise(request, self.pool.backends, self.pool.scheduling)
        ticket = Ticket(request, self.granted.append, _refused, self._index.match)
        return ticket, self.pool.submit(ticket)

    def _blocks(self, count: int) -> Chain:
        return self._random.randbytes(count * HASH_BYTES)


NO_MATCH_SHARE = 0.3
"""Of those that wait: prompts that nobody holds."""


def decide(backends: int, rounds: int) -> list[float]:
    """Match, class, choice, lease, first token and release, with nothing waiting."""
    bench = Bench(backends)

    def one() -> None:
        _, lease = bench.submit()
        assert lease is not None
        bench.stream(lease)
        lease.release()

    return _times(one, rounds)


def join(backends: int, waiting: int, rounds: int) -> list[float]:
    """Match, class and choice for one that has to wait, and its leaving."""
    bench = Bench(backends)
    bench.hold(waiting)

    def one() -> None:
        ticket, lease = bench.submit()
        assert lease is None
        bench.pool.cancel(ticket)

    return _times(one, rounds)


def let_go(backends: int, waiting: int, rounds: int) -> list[float]:
    """A first token behind which others wait, per ticket that it lets go."""
    bench = Bench(backends)
    running = bench.hold(waiting)
    times = []
    for _ in range(rounds):
        lease = running.pop(0)
        bench.granted.clear()
        started = process_time_ns()
        lease.first_token()
        took = process_time_ns() - started
        if bench.granted:
            times.append(took / 1e3 / len(bench.granted))
        running.extend(bench.granted)
        lease.release()
        while bench.pool.depth(WorkClass.PREFILL) + bench.pool.depth(WorkClass.DECODE) < waiting:
            _, granted = bench.submit(NO_MATCH_SHARE)
            if granted is not None:
                running.append(granted)
    return times


def tick_held(backends: int, waiting: int, rounds: int) -> list[float]:
    """The same where gates are open and streams could not bear what waits."""
    bench = Bench(backends, made=1)
    bench.fill(waiting)
    return _times(bench.pool.expire, rounds)


def tick(backends: int, waiting: int, rounds: int) -> list[float]:
    """The look for what only time has made room for."""
    bench = Bench(backends)
    bench.hold(waiting)
    return _times(bench.pool.expire, rounds)


def _times(one: Callable[[], None], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        started = process_time_ns()
        one()
        times.append((process_time_ns() - started) / 1e3)
    return times


def _lease(
    load: BackendLoad, tokens: int, seconds: float, lengths: OutputLengths | None = None
) -> Lease:
    decision, pending = Decision(load.id, Reason.ONLY), int(seconds > 0.0)
    return Lease(
        load, decision, WorkClass.DECODE, tokens, pending, seconds, _clock, lengths=lengths
    )


def _clock() -> float:
    return 1_000.0


def _refused(refusal: Refusal) -> None:
    raise AssertionError(refusal)


def main() -> None:
    parser = argparse.ArgumentParser(prog="loadtests.decision", description=__doc__)
    parser.add_argument("--backends", type=int, nargs="+", default=[16, 500])
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    waiting = arguments.waiting
    print(f"{BLOCKS}-block prompts; CPU in microseconds, median and P99")
    print(f"{'':44}" + "".join(f"{f'{count} backends':>20}" for count in arguments.backends))
    rows: list[tuple[str, Callable[[int], list[float]]]] = [
        ("decision, nothing waiting", lambda n: decide(n, arguments.rounds)),
        (f"joining {waiting} that wait, and leaving", lambda n: join(n, waiting, arguments.rounds)),
        (f"letting one of {waiting} go", lambda n: let_go(n, waiting, arguments.rounds // 4)),
        (f"tick, {waiting} waiting", lambda n: tick(n, waiting, arguments.rounds // 10)),
        (
            f"tick, {waiting} held for streams",
            lambda n: tick_held(n, waiting, arguments.rounds // 10),
        ),
    ]
    for name, measure in rows:
        cells = []
        for count in arguments.backends:
            times = sorted(measure(count))
            cells.append(f"{median(times):.0f} / {times[int(0.99 * len(times))]:.0f}")
        print(f"{name:44}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
