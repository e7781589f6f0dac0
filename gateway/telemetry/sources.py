"""The other parts, as far as their state is shown on the metrics page.

The fleet, the ledgers, the pools and the index satisfy these protocols as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.telemetry.shared_sources import SharingView
from gateway.types import Clock, WorkClass


class BreakerView(Protocol):
    @property
    def state(self) -> str: ...
    @property
    def failures(self) -> int: ...


class BackendView(Protocol):
    """A backend of the fleet."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def breaker(self) -> BreakerView: ...
    @property
    def busy(self) -> object | None:
        """None unless it said of late that it has too much to do."""


class ClassLoadView(Protocol):
    @property
    def own(self) -> int:
        """Requests that this replica sent and that have not finished."""


class ReportedView(Protocol):
    """What an engine says of its load."""

    @property
    def running(self) -> int | None: ...
    @property
    def waiting(self) -> int | None: ...
    @property
    def kv_use(self) -> float | None: ...


class LoadView(Protocol):
    """A backend's ledger."""

    @property
    def id(self) -> str: ...
    @property
    def reported(self) -> ReportedView | None: ...
    @property
    def reported_at(self) -> float | None: ...
    @property
    def prefill_rate(self) -> float: ...
    @property
    def step_seconds(self) -> float: ...
    def of(self, work_class: WorkClass, /) -> ClassLoadView: ...


class PoolState(Protocol):
    """Who waits in a pool."""

    @property
    def backends(self) -> Mapping[str, int]:
        """By id, how many for each."""

    @property
    def unplaced(self) -> int: ...
    @property
    def tenants(self) -> int: ...


class PoolView(Protocol):
    """A pool's queues."""

    @property
    def model(self) -> str: ...
    def depth(self, work_class: WorkClass, /) -> int: ...
    def oldest_wait(self, work_class: WorkClass, /) -> float: ...
    def snapshot(self) -> PoolState: ...


@dataclass(slots=True, frozen=True)
class GateState:
    """What is sent to a backend at once, and what is held for it."""

    closed: bool
    pending_seconds: float


class HoldingView(Protocol):
    @property
    def blocks(self) -> int: ...
    @property
    def tokens(self) -> float: ...
    @property
    def capacity_tokens(self) -> float: ...


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


class ErrorView(Protocol):
    """Sums over predictions that were put to the test."""

    @property
    def count(self) -> int: ...
    @property
    def signed(self) -> float:
        """Of the relative errors."""

    @property
    def absolute(self) -> float:
        """Of their sizes."""


class FeedView(Protocol):
    """A source of backends."""

    @property
    def name(self) -> str: ...
    @property
    def failures(self) -> int: ...


@dataclass(slots=True, frozen=True)
class FeedReading:
    """A source of backends, with what its list is like.

    Attributes:
        entries: backends that it names.
        unreachable: of these, the ones that do not answer their probes.
        age: seconds since the list was read; infinite before it first was.
    """

    feed: FeedView
    entries: int
    unreachable: int
    age: float


class KeyUse(Protocol):
    """What one API key has used since the start."""

    @property
    def requests_total(self) -> int: ...
    @property
    def tokens_charged(self) -> int: ...
    @property
    def refused(self) -> Mapping[Any, int]:
        """Requests that were held back, by limit."""


class KeysView(Protocol):
    """The API keys."""

    @property
    def uses(self) -> Mapping[str, KeyUse]:
        """By the key's name."""

    @property
    def failures(self) -> Mapping[Any, int]:
        """Requests that were not let in, by why."""


@dataclass(slots=True, frozen=True)
class Sources:
    """Where the state of the other parts is read from, at each scrape anew.

    Args:
        version: of the gateway.
        policy: name of the routing policy in use.
        clock: the one that `reported_at` is told on.
        backends, loads, pools: iterated over once for each metric that is read from them.
        gates: by backend.
        feeds: the configured sources of backends.
        errors: by what was predicted.
        bytes_per_token: of a model's prompts, as far as it is known.
        index: the prefix index in numbers.
        keys: the API keys.
        overrides: how many things were set over the admin API, by where they are held.
        sharing: what is shared with other replicas; None where nothing is.
    """

    version: str
    policy: Callable[[], str]
    clock: Clock
    backends: Iterable[BackendView]
    loads: Iterable[LoadView]
    pools: Iterable[PoolView]
    gates: Callable[[], Mapping[str, GateState]]
    feeds: Callable[[], Iterable[FeedReading]]
    errors: Callable[[], Mapping[str, ErrorView]]
    bytes_per_token: Callable[[str], float]
    index: Callable[[], IndexView]
    keys: KeysView
    overrides: Callable[[], Mapping[str, int]]
    sharing: Callable[[], SharingView | None]
