"""What replicas share, as far as the metrics page shows it.

The link, the feed, the index's sharing and the limits satisfy these protocols as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class LinkView(Protocol):
    """The way to Redis."""

    @property
    def up(self) -> bool: ...
    @property
    def commands(self) -> Mapping[Any, int]:
        """By what became of them."""

    @property
    def seconds(self) -> float:
        """That answers took, summed."""

    @property
    def reconnects(self) -> int: ...


class FeedView(Protocol):
    """What replicas tell each other."""

    @property
    def published(self) -> Mapping[Any, int]:
        """Records by kind, an enum's member."""

    @property
    def applied(self) -> Mapping[Any, int]: ...
    @property
    def skipped(self) -> Mapping[Any, int]:
        """Others' by reason."""

    @property
    def dropped(self) -> int: ...
    @property
    def gaps(self) -> int: ...
    @property
    def rewinds(self) -> int: ...
    @property
    def outbox_bytes(self) -> int: ...
    @property
    def lag_seconds(self) -> float: ...
    @property
    def snapshots_written(self) -> int: ...
    @property
    def snapshots_loaded(self) -> int: ...
    @property
    def snapshot_failures(self) -> int: ...
    @property
    def snapshots_lost(self) -> int: ...
    @property
    def snapshot_age(self) -> float | None: ...
    @property
    def snapshot_bytes(self) -> int: ...
    @property
    def replicas(self) -> int: ...


class SharedIndexView(Protocol):
    """Uses of prefixes, told and heard of."""

    @property
    def learnt(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def gaps(self) -> int: ...
    @property
    def stale(self) -> int: ...
    @property
    def unknown(self) -> int: ...


class LimitsView(Protocol):
    """How the API keys' limits are shared."""

    @property
    def local(self) -> bool:
        """Whether each replica has limits of its own, for now."""

    @property
    def replicas(self) -> int:
        """That there were when they last counted together."""

    @property
    def decided_shared(self) -> int: ...
    @property
    def decided_alone(self) -> int: ...


class AllotmentsView(Protocol):
    """A replica's parts of the backends' limits."""

    @property
    def guessed(self) -> int:
        """How many of them Redis has not said."""


@dataclass(slots=True, frozen=True)
class SharingView:
    """All of it, at one moment.

    Attributes:
        warm: this replica knows what the others know.
    """

    link: LinkView
    feed: FeedView
    warm: bool
    index: SharedIndexView
    limits: LimitsView
    allotments: AllotmentsView
