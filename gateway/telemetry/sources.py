"""The other parts, as far as their state is shown on the metrics page.

The fleet, the ledgers, the pools and the index satisfy these protocols as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.types import WorkClass


class BackendView(Protocol):
    """A backend of the fleet."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...


class ClassLoadView(Protocol):
    @property
    def in_flight(self) -> int: ...


class LoadView(Protocol):
    """A backend's ledger."""

    @property
    def id(self) -> str: ...
    def of(self, work_class: WorkClass, /) -> ClassLoadView: ...


class PoolView(Protocol):
    """A pool's queues."""

    @property
    def model(self) -> str: ...
    def depth(self, work_class: WorkClass, /) -> int: ...
    def oldest_wait(self, work_class: WorkClass, /) -> float: ...


class HoldingView(Protocol):
    @property
    def blocks(self) -> int: ...
    @property
    def tokens(self) -> float: ...


class IndexView(Protocol):
    """The prefix index in numbers."""

    @property
    def nodes(self) -> int: ...
    @property
    def evicted_blocks(self) -> int: ...
    @property
    def bookings(self) -> int: ...
    @property
    def backends(self) -> Mapping[str, HoldingView]: ...


@dataclass(slots=True, frozen=True)
class Sources:
    """Where the state of the other parts is read from, at each scrape anew.

    Args:
        version: of the gateway.
        policy: name of the routing policy in use.
        backends, loads, pools: iterated over once for each metric that is read from them.
        index: the prefix index in numbers.
    """

    version: str
    policy: Callable[[], str]
    backends: Iterable[BackendView]
    loads: Iterable[LoadView]
    pools: Iterable[PoolView]
    index: Callable[[], IndexView]
