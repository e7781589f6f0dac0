"""More than can be served for a while, with and without refusing what would come too late."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from gateway.scheduling.lease import Lease
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import Refusal, Refused, Ticket
from gateway.types import Role
from loadtests.replay import source
from loadtests.replay.gateway import MODEL
from loadtests.replay.metrics import Slo
from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.scenarios.stage import Stage
from loadtests.scenarios.table import Figures
from loadtests.summary import percentile

TITLE = "40 s of overload and 20 quiet ones after it, without and with shed_factor"
RATE = 10.0
"""Conversations' requests per second that the engines can serve within the SLO."""
BUSY = 40.0
SECONDS = 60.0
QUIET = 0.4
"""Load after `BUSY` seconds."""
LOADS = (1.3, 2.0)
OURS = "prefix_affinity"
SHEDDING = "prefix_affinity?scheduling.shed_factor=1.5"
MAX_TRIES = 30


def run(loads: Sequence[float] = LOADS) -> dict[str, Figures]:
    """Each load without and with shedding; and how it goes with those who are refused when they
    ask again as they are told to."""
    rows: dict[str, Figures] = {}
    for load in loads:
        requests = _requests(load)
        for arm in (OURS, SHEDDING):
            rows[f"{arm}, x{load:g}"] = {
                **_served(requests, Stage(arm).play(requests)),
                **_retries(retried(arm, requests)),
            }
    return rows


class _Told(Pool):
    """A pool that remembers the last refusal, which a result says less about."""

    refusal: Refusal

    def submit(self, ticket: Ticket) -> Lease | None:
        told = ticket.on_refuse

        def refused(refusal: Refusal) -> None:
            self.refusal = refusal
            told(refusal)

        ticket.on_refuse = refused
        try:
            return super().submit(ticket)
        except Refused as error:
            self.refusal = error.refusal
            raise


class Client:
    """Asks again after as long as it was told to.

    Attributes:
        results: of each try.
        told: seconds to wait, after each try that was refused.
    """

    def __init__(self, stage: Stage, pool: _Told, request: TraceRequest) -> None:
        self._stage = stage
        self._pool = pool
        self._request = request
        self.results: list[Result] = []
        self.told: list[float] = []
        self._ask()

    def _ask(self) -> None:
        self.results.append(self._stage.ask(self._request, self._ended))

    def _ended(self, result: Result) -> None:
        if result.refusal is not None and len(self.results) < MAX_TRIES:
            self.told.append(self._pool.refusal.retry_after)
            again = self._stage.timeline.time() + self.told[-1]
            self._request = replace(self._request, arrival=again)
            self._ask()


def retried(arm: str, requests: Sequence[TraceRequest]) -> list[Client]:
    stage = Stage(arm)
    plain = stage.gateway.pool
    pool = _Told(MODEL, Role.UNIFIED, plain.policy, plain.scheduling, stage.timeline.time)
    backends = plain.backends
    plain.set_backends(())
    pool.set_backends(backends)
    stage.gateway.pool = pool
    clients = [Client(stage, pool, request) for request in requests]
    stage.timeline.run()
    return clients


def _requests(load: float) -> list[TraceRequest]:
    trace = source.find(f"gen:chat?rate={load * RATE}&seconds={SECONDS}")(1)
    dice = random.Random("quiet")
    return [
        request
        for request in trace.requests
        if request.arrival < BUSY or dice.random() < QUIET / load
    ]


def _served(requests: Sequence[TraceRequest], results: Sequence[Result]) -> dict[str, float]:
    slo = Slo()
    busy = [result for result in results if result.arrival < BUSY]
    ttfts = sorted(result.ttft for result in busy if result.ttft is not None)
    return {
        "goodput": sum(map(slo.met, busy)) / BUSY,
        "refused": sum(result.first is None for result in busy) / len(busy),
        "TTFT P95": percentile(ttfts, 0.95),
    }


def _retries(clients: Sequence[Client]) -> dict[str, float]:
    refused = [client for client in clients if client.told]
    if not refused:
        return dict.fromkeys(("Retry-After P50", "at 1st retry", "tries", "late"), 0.0)
    slo = Slo()
    last = [client.results[-1] for client in refused]
    return {
        "Retry-After P50": percentile(sorted(client.told[0] for client in refused), 0.5),
        "at 1st retry": sum(len(client.told) == 1 for client in refused) / len(refused),
        "tries": sum(len(client.results) for client in refused) / len(refused),
        "late": sum(not slo.met(result) for result in last) / len(refused),
    }
