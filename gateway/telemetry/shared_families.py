"""The metrics of what replicas share; none of them has a sample where nothing is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gateway.telemetry.family import Family, Kind, Labels, Merge, Scrape, Value
from gateway.telemetry.shared_sources import SharingView

Reading = Iterable[tuple[Labels, Value]]


def _shared(
    name: str,
    kind: Kind,
    labels: Labels,
    help: str,
    read: Callable[[SharingView], Reading],
    merge: Merge | None = None,
) -> Family:
    def read_if_shared(scrape: Scrape) -> Reading:
        sharing = scrape.sources.sharing()
        return () if sharing is None else read(sharing)

    return Family(name, kind, labels, help, read_if_shared, merge)


def _counter(name: str, help: str, value: Callable[[SharingView], float]) -> Family:
    return _shared(name, "counter", (), help, lambda sharing: [((), value(sharing))])


def _gauge(name: str, help: str, value: Callable[[SharingView], float], merge: Merge) -> Family:
    return _shared(name, "gauge", (), help, lambda sharing: [((), value(sharing))], merge)


def _named(counts: Mapping[Any, int]) -> Iterator[tuple[str, int]]:
    """With the names of the enum's members, which are records' kinds."""
    for member, count in counts.items():
        yield member.name.lower(), count


def _records(sharing: SharingView) -> Iterator[tuple[Labels, Value]]:
    for kind, count in _named(sharing.feed.published):
        yield ("told", kind), count
    for kind, count in _named(sharing.feed.applied):
        yield ("heard", kind), count


def _lost(sharing: SharingView) -> Iterator[tuple[Labels, Value]]:
    feed = sharing.feed
    yield ("outbox",), feed.dropped
    yield ("stream",), feed.gaps
    for reason, count in feed.skipped.items():
        yield (str(reason),), count


def _snapshots(sharing: SharingView) -> Iterator[tuple[Labels, Value]]:
    feed = sharing.feed
    yield ("written",), feed.snapshots_written
    yield ("loaded",), feed.snapshots_loaded
    yield ("failed",), feed.snapshot_failures
    yield ("lost",), feed.snapshots_lost


def _snapshot_age(sharing: SharingView) -> Iterator[tuple[Labels, Value]]:
    age = sharing.feed.snapshot_age
    if age is not None:
        yield (), age


def _uses(sharing: SharingView) -> Iterator[tuple[Labels, Value]]:
    index = sharing.index
    yield ("told",), index.learnt
    yield ("applied",), index.applied
    yield ("gap",), index.gaps
    yield ("stale",), index.stale
    yield ("unknown",), index.unknown


def _decisions(sharing: SharingView) -> Iterator[tuple[Labels, Value]]:
    yield ("shared",), sharing.limits.decided_shared
    yield ("local",), sharing.limits.decided_alone


SHARED_FAMILIES: tuple[Family, ...] = (
    _gauge(
        "prefixgate_limits_local",
        "1 while API keys' limits are this replica's own, as Redis is away.",
        lambda sharing: float(sharing.limits.local),
        "max",
    ),
    _gauge(
        "prefixgate_limits_replicas",
        "Replicas that API keys' limits are divided by while they are local.",
        lambda sharing: sharing.limits.replicas,
        "max",
    ),
    _shared(
        "prefixgate_limit_decisions_total",
        "counter",
        ("where",),
        "Requests of API keys with limits, by whose counts decided on them.",
        _decisions,
    ),
    _gauge(
        "prefixgate_redis_up",
        "1 while Redis takes commands; all goes on without.",
        lambda sharing: float(sharing.link.up),
        "min",
    ),
    _shared(
        "prefixgate_redis_commands_total",
        "counter",
        ("outcome",),
        "Commands to Redis.",
        lambda sharing: (
            ((str(outcome),), count) for outcome, count in sharing.link.commands.items()
        ),
    ),
    _counter(
        "prefixgate_redis_command_seconds_total",
        "What Redis took to answer, summed over the commands that were done.",
        lambda sharing: sharing.link.seconds,
    ),
    _counter(
        "prefixgate_redis_reconnects_total",
        "Connections to Redis that were lost and made again.",
        lambda sharing: sharing.link.reconnects,
    ),
    _gauge(
        "prefixgate_replicas",
        "Replicas that are there, this one included.",
        lambda sharing: sharing.feed.replicas,
        "max",
    ),
    _gauge(
        "prefixgate_replica_warm",
        "1 once this replica knows what the others know.",
        lambda sharing: float(sharing.warm),
        "min",
    ),
    _shared(
        "prefixgate_feed_records_total",
        "counter",
        ("direction", "kind"),
        "What was told to other replicas, and what was taken in of what they told.",
        _records,
    ),
    _shared(
        "prefixgate_feed_lost_total",
        "counter",
        ("where",),
        "What was told between replicas and came to nothing.",
        _lost,
    ),
    _counter(
        "prefixgate_feed_rewinds_total",
        "Times that the end of the stream had gone back.",
        lambda sharing: sharing.feed.rewinds,
    ),
    _gauge(
        "prefixgate_feed_outbox_bytes",
        "What is still to be told to other replicas.",
        lambda sharing: sharing.feed.outbox_bytes,
        "sum",
    ),
    _gauge(
        "prefixgate_feed_lag_seconds",
        "By how much this replica is behind what the others tell.",
        lambda sharing: sharing.feed.lag_seconds,
        "max",
    ),
    _shared(
        "prefixgate_snapshots_total",
        "counter",
        ("event",),
        "Snapshots of the index that this replica wrote, started from, or could not.",
        _snapshots,
    ),
    _shared(
        "prefixgate_snapshot_age_seconds",
        "gauge",
        (),
        "Since the snapshot in Redis was begun; none where there is none.",
        _snapshot_age,
        "min",
    ),
    _gauge(
        "prefixgate_snapshot_bytes",
        "Size of the snapshot in Redis.",
        lambda sharing: sharing.feed.snapshot_bytes,
        "max",
    ),
    _shared(
        "prefixgate_shared_uses_total",
        "counter",
        ("result",),
        "Uses of prefixes: told to other replicas, and what became of theirs.",
        _uses,
    ),
    _gauge(
        "prefixgate_allotments_guessed",
        "Parts of backends' limits that this replica has given itself, as Redis is away.",
        lambda sharing: sharing.allotments.guessed,
        "max",
    ),
)
