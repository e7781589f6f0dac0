"""Replicas with a shared load, and a feed between them that tests hold, lose, repeat and mix."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.shared_load import SharedLoad
from gateway.shared.records import Kind
from gateway.types import Decision, Reason, WorkClass
from policies.base import Policy
from policies.registry import build
from tests.scheduling.virtual import DECODE, VirtualClock, load_of


class Replica:
    """One replica's ledgers.

    Attributes:
        outbox: records that were published and not yet delivered.
    """

    def __init__(
        self,
        name: str,
        clock: VirtualClock,
        ids: Iterable[str] = "ab",
        policy: Policy | None = None,
    ) -> None:
        self.origin = name.encode().ljust(8, b"-")
        self.clock = clock
        self.policy = policy or build("least_load", {})
        self.outbox: list[bytes] = []
        self.shared = SharedLoad(self, clock, lambda: self.policy)
        self.loads = {id: load_of(id) for id in ids}
        for load in self.loads.values():
            self.shared.attach(load)

    def publish(self, kind: Kind, record: bytes) -> None:
        assert kind is Kind.LOAD
        self.outbox.append(record)

    def take(
        self,
        backend: str = "a",
        work_class: WorkClass = DECODE,
        prompt_tokens: int = 100,
        uncached_tokens: int = 100,
        anchor: bytes = b"",
    ) -> Lease:
        return Lease(
            self.loads[backend],
            Decision(backend, Reason.ONLY),
            work_class,
            prompt_tokens,
            uncached_tokens,
            uncached_tokens / 10_000,
            self.clock,
            anchor=anchor,
        )

    def hear(self, other: Replica, records: Iterable[bytes]) -> None:
        for record in records:
            self.shared.apply(Kind.LOAD, record, other.origin)

    def beat(self) -> None:
        """A heartbeat: what is out is told anew."""
        self.outbox += [record for _, record in self.shared.state()]


def deliver(replicas: Iterable[Replica], random: Random | None = None, loss: float = 0.0) -> None:
    """Hand everybody's records to everybody else, each after its own fate if `random` is given:
    lost with the probability `loss`, else perhaps late or twice."""
    everybody = tuple(replicas)
    outboxes = [(sender, sender.outbox) for sender in everybody]
    for sender in everybody:
        sender.outbox = []
    for sender, outbox in outboxes:
        for receiver in everybody:
            if receiver is sender:
                continue
            records = list(outbox)
            if random is not None:
                records = [record for record in records if random.random() >= loss]
                records += [record for record in records if random.random() < 0.2]
                if random.random() < 0.3:
                    random.shuffle(records)
            receiver.hear(sender, records)


def ledger(load: BackendLoad, now: float) -> dict[str, object]:
    """All that a ledger counts, whoever sent it."""
    classes = {
        work_class.value: (own.in_flight, own.pending, own.uncached_tokens)
        for work_class in WorkClass
        for own in (load.of(work_class),)
    }
    return {
        "in_flight": load.in_flight,
        "decoding": load.decoding,
        "pending": load.pending,
        "pending_tokens": load.pending_tokens,
        "pending_seconds": round(load.pending_seconds(now), 5),
        "context_tokens": load.context_tokens,
        "memory_tokens": load.memory_tokens,
        "long": (load.over(1000).requests, load.over(1000).tokens),
        **classes,
    }
