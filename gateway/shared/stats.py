"""What the feed counts and how it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.shared.records import Kind


class Skip(StrEnum):
    """Why something that others sent was not taken in. A metric label, so the set is closed."""

    VERSION = "version"
    """A batch of another release."""
    BATCH = "batch"
    """A batch that cannot be read."""
    KIND = "kind"
    """A record of a kind that is not known."""
    RECORD = "record"
    """A record that cannot be read."""
    ERROR = "error"
    """The part that a record is for failed. Always a bug."""


class Warmth(StrEnum):
    """Whether this replica knows what the others know."""

    COLD = "cold"
    """It does not, and nothing is being done about it: Redis is away."""
    LOADING = "loading"
    WARM = "warm"


@dataclass(slots=True)
class FeedStats:
    """Counters since the start, unless it says otherwise.

    Attributes:
        published: own records that were put into the outbox, by kind.
        records_sent, batches_sent, bytes_sent: appended to the stream for certain.
        append_failures: attempts to append that failed, or whose outcome is not known.
        dropped: own records that had to go because the outbox was full.
        batches_received: others' batches that were not duplicates.
        applied: others' records that a part took in, by kind.
        duplicates: batches seen before.
        gaps: times that batches of another replica were missing.
        own_gaps: times that own batches were missing from the stream.
        skipped: by reason; batches for `VERSION` and `BATCH`, records for the others.
        rewinds: times that the end of the stream was found to have gone back, as after a failover.
        reloads: times that the snapshot was needed again while running.
        outbox_records, outbox_bytes: not sent yet, now.
        lag_entries: entries of the stream that are not taken in yet, now; at most `LOOK_LIMIT`.
        lag_seconds: what these span in time.
        snapshots_written, snapshots_loaded: by this replica.
        snapshot_failures: snapshots that were not written or loaded to their end.
        snapshots_lost: times that one was there and then none.
        snapshot_age: seconds since the position of the current one, whoever wrote it; None when
            there is none or Redis is away.
        snapshot_bytes: size of the current one.
        snapshot_seconds: what the last writing took this replica.
        load_seconds: what the last loading took this replica.
        replicas: those alive, this one included.
        warmth: now.
    """

    published: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    records_sent: int = 0
    batches_sent: int = 0
    bytes_sent: int = 0
    append_failures: int = 0
    dropped: int = 0
    batches_received: int = 0
    applied: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    duplicates: int = 0
    gaps: int = 0
    own_gaps: int = 0
    skipped: dict[Skip, int] = field(default_factory=lambda: dict.fromkeys(Skip, 0))
    rewinds: int = 0
    reloads: int = 0
    outbox_records: int = 0
    outbox_bytes: int = 0
    lag_entries: int = 0
    lag_seconds: float = 0.0
    snapshots_written: int = 0
    snapshots_loaded: int = 0
    snapshot_failures: int = 0
    snapshots_lost: int = 0
    snapshot_age: float | None = None
    snapshot_bytes: int = 0
    snapshot_seconds: float = 0.0
    load_seconds: float = 0.0
    replicas: int = 1
    warmth: Warmth = Warmth.COLD
