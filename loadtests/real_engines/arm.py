"""One policy's run of the conversations, and what can be read off it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtests.real_engines.counters import Counters, Estimate
from loadtests.real_engines.exchange import Exchange


@dataclass(slots=True, frozen=True)
class Arm:
    """
    Attributes:
        exchanges: in order of their ends.
        counters: by backend id, what its engine counted meanwhile.
        estimate: what the gateway counted.
    """

    policy: str
    exchanges: Sequence[Exchange]
    counters: Mapping[str, Counters]
    estimate: Estimate

    def at(self, backend: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.backend == backend]

    def told(self, backend: str) -> Counters:
        """The same as `counters`, added up from what the answers tell."""
        there = self.at(backend)
        return Counters(
            sum(len(exchange.prompt) for exchange in there),
            sum(exchange.cached for exchange in there),
        )

    @property
    def hits(self) -> int:
        return sum(counted.hits for counted in self.counters.values())

    def stayed(self) -> Iterator[tuple[Exchange, Exchange]]:
        """Every turn that was answered where the one before it was, after that one."""
        last: dict[str, Exchange] = {}
        for exchange in self.exchanges:
            before = last.get(exchange.conversation)
            if before is not None and before.backend == exchange.backend:
                yield before, exchange
            last[exchange.conversation] = exchange

    def strays(self) -> list[Exchange]:
        """The turns that were answered elsewhere than their conversation's first."""
        homes = {one.conversation: one.backend for one in self.exchanges if one.turn == 0}
        return [one for one in self.exchanges if one.backend != homes[one.conversation]]
