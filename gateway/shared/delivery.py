"""Giving what came through the stream to the parts that it is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.shared.batch import UnknownVersion, read_head, read_records
from gateway.shared.records import BadRecord, Kind, Origin, Subscriber
from gateway.shared.stats import FeedStats, Skip

logger = logging.getLogger("prefixgate.shared")

MAX_ORIGINS = 1024
"""Replicas whose last number is remembered, those heard last."""


@dataclass(slots=True)
class _Route:
    """Attributes:
    apply: of each part that wants this kind.
    """

    kind: Kind
    apply: list[Callable[[Kind, bytes, Origin], None]]
    failed: bool = False


class Delivery:
    """Takes batches in the order of the stream. Nothing in a batch makes it raise.

    Args:
        own: this replica, whose own batches are only counted.
        heard: told of each batch of another that was not had before, with its age.

    Attributes:
        numbers: of the last batch taken in, by origin.
    """

    def __init__(
        self, own: Origin, heard: Callable[[Origin, float], None], stats: FeedStats
    ) -> None:
        self._own = own
        self._heard = heard
        self._stats = stats
        self._subscribers: list[Subscriber] = []
        self._routes: dict[int, _Route] = {kind: _Route(kind, []) for kind in Kind}
        self.numbers: dict[Origin, int] = {}

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)
        for kind in subscriber.kinds:
            self._routes[kind].apply.append(subscriber.apply)

    @property
    def echoed(self) -> int:
        """Number of the last own batch that was seen in the stream."""
        return self.numbers.get(self._own, 0)

    def batch(self, batch: bytes, age: float) -> Iterator[None]:
        """Take in one batch, a record a step, so that the caller can pause between any two."""
        try:
            origin, number = read_head(batch)
        except BadRecord as error:
            self._skip(Skip.VERSION if isinstance(error, UnknownVersion) else Skip.BATCH)
            return
        last = self.numbers.get(origin, 0)
        if number <= last:
            # Own ones come twice whenever the stream is read again.
            self._stats.duplicates += origin != self._own
            return
        if origin == self._own:
            self._stats.own_gaps += number != last + 1
            self._note(origin, number)
            return
        self._stats.batches_received += 1
        self._heard(origin, age)
        try:
            records = read_records(batch)
        except BadRecord:
            self._skip(Skip.BATCH)
            self.missed(origin)
            self._note(origin, number)
            return
        if number != last + 1:
            self.missed(origin)
        for kind, record in records:
            self._record(kind, record, origin)
            yield
        # Not before: a snapshot begun in the middle of a batch must not say that it has all of it.
        self._note(origin, number)

    def missed(self, origin: Origin) -> None:
        self._stats.gaps += 1
        self._tell(lambda subscriber: subscriber.missed(origin))

    def gone(self, origin: Origin) -> None:
        self._tell(lambda subscriber: subscriber.gone(origin))

    def known_from(self, numbers: dict[Origin, int]) -> None:
        """Go on from a snapshot that was written after these batches."""
        for origin, number in numbers.items():
            self._note(origin, number)

    def _record(self, kind: int, record: bytes, origin: Origin) -> None:
        route = self._routes.get(kind)
        if route is None:
            self._skip(Skip.KIND)
            return
        for apply in route.apply:
            try:
                apply(route.kind, record, origin)
            except BadRecord:
                self._skip(Skip.RECORD)
            except Exception:
                self._skip(Skip.ERROR)
                if not route.failed:
                    route.failed = True
                    logger.exception("taking in a record of kind %s failed", route.kind.name)
            else:
                self._stats.applied[route.kind] += 1

    def _tell(self, tell: Callable[[Subscriber], None]) -> None:
        for subscriber in self._subscribers:
            try:
                tell(subscriber)
            except Exception:
                self._skip(Skip.ERROR)
                logger.exception("telling a part what became of a replica failed")

    def _skip(self, reason: Skip) -> None:
        self._stats.skipped[reason] += 1

    def _note(self, origin: Origin, number: int) -> None:
        numbers = self.numbers
        numbers.pop(origin, None)
        numbers[origin] = number
        if len(numbers) > MAX_ORIGINS:
            del numbers[next(iter(numbers))]
