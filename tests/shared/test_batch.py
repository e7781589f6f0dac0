from __future__ import annotations

import random

import pytest

from gateway.shared.batch import VERSION, UnknownVersion, pack, read_head, read_records
from gateway.shared.delivery import MAX_ORIGINS, Delivery
from gateway.shared.records import BadRecord, Kind, Origin
from gateway.shared.stats import FeedStats, Skip
from tests.shared.members import Book

OWN, OTHER, THIRD = b"own-----", b"other---", b"third---"


def delivery(book: Book) -> tuple[Delivery, FeedStats, list[Origin]]:
    stats, heard = FeedStats(), []
    made = Delivery(OWN, lambda origin, age: heard.append(origin), stats)
    made.subscribe(book)
    return made, stats, heard


def take(made: Delivery, *batches: bytes) -> None:
    for batch in batches:
        for _ in made.batch(batch, 0.0):
            pass


def used(number: int, *records: bytes, origin: Origin = OTHER) -> bytes:
    return pack(origin, number, [(Kind.USED, record) for record in records])


def test_what_was_packed_is_read() -> None:
    records = [(1, b""), (255, b"x" * 70_000), (16, b"y")]
    batch = pack(OTHER, 1 << 40, records)
    assert read_head(batch) == (OTHER, 1 << 40)
    assert read_records(batch) == records


def test_every_batch_that_ends_too_early_is_refused() -> None:
    batch = pack(OTHER, 1, [(1, b"abc"), (2, b"")])
    whole = 17 + 5 + 3
    for length in range(len(batch)):
        if length in (17, whole):
            continue  # these end with a record
        read = read_head if length < 17 else read_records
        with pytest.raises(BadRecord):
            read(batch[:length])
    with pytest.raises(UnknownVersion):
        read_head(bytes((VERSION + 1,)) + batch[1:])


def test_records_arrive_in_order_and_own_ones_do_not() -> None:
    made, stats, heard = delivery(book := Book())
    take(made, used(1, b"a", b"b"), used(1, b"mine", origin=OWN), used(2, b"c"))
    assert book.heard == [b"a", b"b", b"c"]
    assert (heard, made.echoed) == ([OTHER, OTHER], 1)
    assert (stats.batches_received, stats.gaps, stats.duplicates) == (2, 0, 0)


def test_a_gap_is_told_before_what_follows_it() -> None:
    made, stats, _ = delivery(book := Book())
    told: list[object] = []
    book.missed = lambda origin: told.append((origin, [*book.heard]))
    take(made, used(1, b"a"), used(3, b"c"), used(2, b"b"), used(3, b"c"), used(4, b"d"))
    assert book.heard == [b"a", b"c", b"d"]
    assert told == [(OTHER, [b"a"])]
    assert (stats.gaps, stats.duplicates) == (1, 2)


def test_a_replica_first_heard_in_the_middle_has_a_gap_unless_the_snapshot_has_the_rest() -> None:
    made, stats, _ = delivery(book := Book())
    made.known_from({OTHER: 6})
    take(made, used(6, b"old"), used(7, b"new"), used(7, b"new", origin=THIRD))
    assert book.heard == [b"new", b"new"]
    assert book.missing == [THIRD]
    assert stats.duplicates == 1


def test_own_batches_that_are_missing_are_noticed() -> None:
    made, stats, _ = delivery(Book())
    take(made, *(used(number, b"x", origin=OWN) for number in (1, 2, 5, 2, 6)))
    assert (stats.own_gaps, stats.duplicates, made.echoed) == (1, 0, 6)


def test_what_is_not_understood_is_skipped_and_the_rest_taken_in() -> None:
    made, stats, _ = delivery(book := Book())
    odd = [(Kind.USED, b"a"), (200, b"?"), (Kind.USED, b"bad"), (Kind.USED, b"bug"), (1, b"b")]
    take(made, pack(OTHER, 1, odd), b"\xff" + used(2, b"?")[1:], b"", used(2, b"c"))
    assert book.heard == [b"a", b"b", b"c"]
    assert book.missing == []
    expected = {Skip.VERSION: 1, Skip.BATCH: 1, Skip.KIND: 1, Skip.RECORD: 1, Skip.ERROR: 1}
    assert stats.skipped == expected
    assert stats.applied[Kind.USED] == 3


def test_a_batch_that_cannot_be_read_is_a_gap() -> None:
    made, stats, _ = delivery(book := Book())
    take(made, used(1, b"a"), used(2, b"b")[:-1], used(3, b"c"))
    assert book.heard == [b"a", b"c"]
    assert book.missing == [OTHER]
    assert stats.skipped[Skip.BATCH] == 1


def test_a_part_that_fails_keeps_no_other_from_hearing() -> None:
    made, stats, _ = delivery(broken := Book())
    made.subscribe(other := Book())
    broken.missed = broken.gone = lambda origin: 1 / 0
    take(made, used(2, b"a"))
    made.gone(OTHER)
    assert (other.missing, other.ended, other.heard) == ([OTHER], [OTHER], [b"a"])
    assert stats.skipped[Skip.ERROR] == 2


def test_a_batch_half_taken_in_does_not_count_as_had() -> None:
    made, _, _ = delivery(book := Book())
    next(steps := made.batch(used(1, b"a", b"b"), 0.0))
    assert (book.heard, made.numbers) == ([b"a"], {})
    assert [*steps] == [None]
    assert (book.heard, made.numbers) == ([b"a", b"b"], {OTHER: 1})


def test_the_replicas_that_are_remembered_are_bounded_and_the_latest() -> None:
    made, _, _ = delivery(Book())
    take(made, used(1, b"a"))
    for index in range(MAX_ORIGINS):
        take(made, used(1, origin=b"%08d" % index))
    assert len(made.numbers) == MAX_ORIGINS
    assert OTHER not in made.numbers


def test_no_bytes_raise() -> None:
    """Random bytes, and batches that were changed, cut and joined at random."""
    random_ = random.Random(5)
    made, stats, _ = delivery(book := Book())
    kinds = [*Kind, 0, 200]
    for number in range(1, 15_000):
        records = [
            (random_.choice(kinds), random_.randbytes(random_.randrange(12)))
            for _ in range(random_.randrange(4))
        ]
        batch = bytearray(pack(random_.choice((OTHER, THIRD)), number, records))
        for _ in range(random_.randrange(3)):
            batch[random_.randrange(len(batch))] = random_.randrange(256)
        cut = random_.randrange(len(batch) + 1) if random_.random() < 0.3 else len(batch)
        take(made, bytes(batch[:cut]), random_.randbytes(random_.randrange(40)))
    assert all(stats.skipped[reason] for reason in (Skip.VERSION, Skip.BATCH, Skip.KIND))
    assert book.heard
    assert book.missing
    take(made, used(1, b"still", origin=b"new-----"))
    assert book.heard[-1] == b"still"
