"""Replicas that tell each other what they learn, by example; test_sharing_properties.py holds them
against a model. `deaf` is the control: a replica with the feed cut."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.address import Address
from gateway.prefix.dump import CHUNK_BYTES, dump
from gateway.prefix.hearsay import SAME_EVENT
from gateway.prefix.shared_index import (
    AWAIT_SECONDS,
    CAPACITY_INTERVAL,
    WANTED_PER_SECOND,
)
from gateway.prefix.told import MAX_USES
from gateway.shared.records import BadRecord, Kind
from gateway.types import NO_MATCH
from tests.prefix.replica import Replica, chain
from tests.prefix.soundness import assert_sound

HEAD = "a system prompt that all share, "


def send(origin: Replica, *others: Replica) -> list[tuple[Kind, bytes]]:
    """Deliver what a replica has published."""
    records, origin.outbox = origin.outbox, []
    for other in others:
        for kind, record in records:
            other.shared.apply(kind, record, origin.origin)
    return records


def load(origin: Replica, other: Replica) -> None:
    loader = other.shared.loader()
    for chunk in list(origin.shared.dump()):
        loader.feed(chunk)
    loader.finish()


def three(**options: float) -> list[Replica]:
    return [Replica(number, "a", "b", **options) for number in (1, 2, 3)]


def test_c01_what_one_learns_the_other_knows() -> None:
    one, two, deaf = three()
    one.learn("a", "system-one")
    one.learn("b", "system-two")
    send(one, two)
    assert two.held("system-one, more") == {"a": 10, "b": 7}
    assert deaf.held("system-one, more") == {}
    assert two.outbox == [], "what was told is not told again"


def test_k20_four_blocks_are_four_after_replication_and_a_colon_is_part_of_an_id() -> None:
    id = Address.parse("http://[::1]:9001").url
    one, two, deaf = (Replica(number, id) for number in (1, 2, 3))
    one.learn(id, "four")
    send(one, two)
    assert two.held("four") == {"http://[::1]:9001": 4}
    assert deaf.held("four") == {}


def test_k21_only_what_was_accepted_is_told() -> None:
    one, two, deaf = three()
    one.index.withdraw(one.index.book("a", chain("failed")))
    pending = one.index.book("a", chain("pending"))
    assert one.outbox == []
    one.index.confirm(pending)
    one.index.confirm(pending)
    assert len(send(one, two)) == 1
    assert two.held("pending") == {"a": 7}
    assert two.held("failed") == deaf.held("pending") == {}


def test_a_booking_that_others_confirm_stays() -> None:
    one, two, deaf = three()
    bookings = [replica.index.book("a", chain("same")) for replica in (two, deaf)]
    one.learn("a", "same")
    send(one, two)
    two.index.withdraw(bookings[0])
    deaf.index.withdraw(bookings[1])
    assert two.held("same") == {"a": 4}
    assert deaf.held("same") == {}


def test_only_what_is_new_is_told() -> None:
    one, two, deaf = three()
    one.learn("a", HEAD * 3 + "first")
    one.learn("a", HEAD * 3 + "second")
    one.learn("b", HEAD * 3 + "second")
    whole, part, nothing = (len(record) for _, record in send(one, two))
    assert whole > 100 * 8
    assert part < 100
    assert nothing < 60
    assert two.held(HEAD * 3 + "second") == {"a": 102, "b": 102}
    assert deaf.held(HEAD * 3 + "second") == {}


def test_the_way_is_found_where_the_trees_have_other_branches() -> None:
    """Two's tree parts where one's does not, and one's where two's does not."""
    one, two, deaf = three()
    one.learn("a", HEAD + "AAAA")
    send(one, two)
    deaf.outbox.clear()
    for text in (HEAD[:9] + "x", HEAD + "AAB", HEAD[:20] + "yy"):
        two.learn("b", text)
    one.learn("b", HEAD + "Axx")
    one.learn("b", HEAD + "AAAA, and on")
    send(one, two)
    assert two.shared.gaps == 0
    assert two.held(HEAD + "AAAA, and on")["b"] == len(HEAD + "AAAA, and on")
    assert deaf.held(HEAD) == {}


def test_z10_what_builds_on_the_unknown_is_asked_for() -> None:
    one, two, deaf = three()
    one.learn("a", HEAD)
    send(one)
    one.learn("a", HEAD + "more")
    send(one, two, deaf)
    assert two.held(HEAD + "more") == deaf.held(HEAD + "more") == {}, "nothing false is booked"
    assert two.shared.gaps == 1
    deaf.outbox.clear()
    send(two, one)
    assert len(send(one, two)) == 1
    assert two.held(HEAD + "more") == {"a": len(HEAD) + 4}
    assert deaf.held(HEAD + "more") == {}
    one.shared.apply(*_wanted(two, one), two.origin)
    assert one.outbox == [], "once is enough for all that ask"


def _wanted(asking: Replica, asked: Replica) -> tuple[Kind, bytes]:
    """What `asking` would ask once more."""
    asked.learn("b", HEAD + "more")
    ((kind, record),) = [each for each in asked.outbox if each[0] is Kind.USED]
    asked.outbox.clear()
    fresh = Replica(77, "b")
    fresh.shared.apply(kind, record, asked.origin)
    asked.shared.apply(*fresh.outbox[0], fresh.origin)
    asked.outbox.clear()
    return fresh.outbox[0]


def test_z10_a_tree_with_holes_is_repaired_by_what_is_learnt() -> None:
    """Three in ten records never come; what builds on them is learnt in full, and no match is
    longer than what was used."""
    random.seed(10)
    one, two, deaf = three()
    texts = [HEAD + str(number) * 5 for number in range(100)]
    for text in texts:
        one.learn("a", text)
    records, one.outbox = one.outbox, []
    for kind, record in random.sample(records, 70):
        two.shared.apply(kind, record, one.origin)
    for text in texts:
        assert two.held(text).get("a", 0) <= one.held(text)["a"]
    for _ in range(2):
        send(two, one)
        send(one, two)
    for text in texts:
        one.learn("a", text + "!")
    send(one, two)
    send(two, one)
    send(one, two)
    assert all(two.held(text + "!") == {"a": len(text) + 1} for text in texts)
    assert all(deaf.held(text) == {} for text in texts)


def test_z12_four_that_write_at_once_come_to_hold_the_same() -> None:
    random.seed(12)
    replicas = [Replica(number, "a", "b", capacity=60) for number in (1, 2, 3, 4)]
    deaf = Replica(5, "a", "b", capacity=60)
    stream: list[tuple[Kind, bytes, bytes]] = []
    read = dict.fromkeys(replicas, 0)

    def read_on(replica: Replica, count: int) -> None:
        for kind, record, origin in stream[read[replica] :][:count]:
            read[replica] += 1
            if origin != replica.origin:
                replica.shared.apply(kind, record, origin)
        stream.extend((kind, record, replica.origin) for kind, record in replica.outbox)
        replica.outbox.clear()

    texts = []
    for _ in range(2000):
        replica = random.choice(replicas)
        replica.now += 1
        texts.append("head"[: random.randint(0, 4)] + random.choice("xyz") * random.randint(1, 20))
        replica.learn(random.choice("ab"), texts[-1])
        read_on(random.choice(replicas), random.randint(0, 8))
    while any(at < len(stream) for at in read.values()):
        for replica in replicas:
            read_on(replica, len(stream))
    for replica in (*replicas, deaf):
        assert_sound(replica.index)
    for text in texts:
        assert all(replica.held(text) == replicas[0].held(text) for replica in replicas)
    assert any(replicas[0].held(text) for text in texts[-2:])
    assert not any(deaf.held(text) for text in texts)
    evicted = {replica.index.stats().backends["a"].blocks for replica in replicas}
    assert len(evicted) == 1, "as often as it was needed, not once for each"


def test_asking_is_bounded() -> None:
    one, two, _ = three()
    one.learn("a", HEAD)
    send(one)
    for _ in range(WANTED_PER_SECOND + 50):
        one.learn("a", HEAD)
    send(one, two)
    assert two.shared.gaps == WANTED_PER_SECOND + 50
    assert two.shared.asked == len(two.outbox) == WANTED_PER_SECOND
    two.now += 0.5
    for _ in range(WANTED_PER_SECOND):
        one.learn("a", HEAD)
    send(one, two)
    assert two.shared.asked == WANTED_PER_SECOND * 1.5


def test_what_can_be_asked_for_is_bounded() -> None:
    one, two, _ = three()
    one.learn("a", HEAD)
    send(one)
    one.learn("a", HEAD + "old")
    send(one, two)
    for _ in range(MAX_USES):
        one.learn("a", HEAD)
    one.outbox.clear()
    send(two, one)
    assert one.outbox == []
    assert two.held(HEAD) == {}


def test_a_reset_is_heard_and_what_was_learnt_before_it_is_not() -> None:
    one, two, deaf = three()
    for replica in (two, deaf):
        replica.learn("a", "before")
        replica.outbox.clear()
    two.learn("a", "late")
    one.index.reset_backend("a")
    send(one, two)
    assert two.held("before") == {}
    assert deaf.held("before") == {"a": 6}
    send(two, one)
    assert one.held("late") == {}, "it was learnt on an engine that is gone"
    assert one.shared.stale == 1


def test_a_use_of_a_later_epoch_resets_first() -> None:
    one, two, deaf = three()
    for replica in (two, deaf):
        replica.learn("a", "before")
    one.index.reset_backend("a")
    send(one)
    one.learn("a", "after")
    send(one, two)
    assert (two.held("before"), two.held("after")) == ({}, {"a": 5})
    assert (deaf.held("before"), deaf.held("after")) == ({"a": 6}, {})


def test_a_reset_that_was_lost_is_told_again() -> None:
    one, two, deaf = three()
    assert list(one.shared.state()) == []
    for replica in (two, deaf):
        replica.learn("a", "before")
        replica.generations.raise_for("m")
    one.index.reset_backend("a")
    one.generations.raise_for("m")
    one.generations.raise_for("m")
    one.outbox.clear()
    for kind, record in one.shared.state():
        two.shared.apply(kind, record, one.origin)
        two.shared.apply(kind, record, one.origin)
    assert (two.held("before"), two.generations.number("m")) == ({}, 2)
    assert (deaf.held("before"), deaf.generations.number("m")) == ({"a": 6}, 1)


def test_one_restart_resets_once() -> None:
    one, two, deaf = three()
    assert one.shared.restarted("a")
    send(one, two)
    for replica in (two, deaf):
        replica.learn("a", "after")
        replica.now += SAME_EVENT - 1
    assert not two.shared.restarted("a"), "it is the one that was told of"
    assert two.held("after") == {"a": 5}
    assert deaf.shared.restarted("a")
    assert deaf.held("after") == {}
    assert two.shared.restarted("a"), "and this is another"
    assert two.held("after") == {}


def test_a_restart_long_after_is_another_one() -> None:
    one, two, _ = three()
    one.shared.restarted("a")
    send(one, two)
    two.now += SAME_EVENT
    assert two.shared.restarted("a")


def test_a_flush_by_an_operator_hides_no_restart() -> None:
    one, two, _ = three()
    one.index.reset_backend("a")
    send(one, two)
    assert two.shared.restarted("a")


def test_two_that_see_a_restart_at_once_reset_once() -> None:
    one, two, _ = three()
    for replica in (one, two):
        assert replica.shared.restarted("a")
        replica.learn("a", "after")
    send(two, one)
    send(one, two)
    assert one.held("after") == two.held("after") == {"a": 5}


def test_a_flush_is_heard() -> None:
    one, two, deaf = three()
    for replica in (one, two, deaf):
        replica.learn("a", "text")
        replica.learn("b", "text")
        replica.outbox.clear()
    one.index.flush()
    send(one, two)
    assert two.index.match(chain("text")) is NO_MATCH
    assert deaf.held("text") == {"a": 4, "b": 4}


def test_a_models_generation_is_shared_and_the_higher_one_wins() -> None:
    one, two, deaf = three()
    for _ in range(3):
        one.generations.raise_for("m")
    two.generations.raise_for("m")
    records = send(one, two)
    send(two, one)
    assert one.generations.namespace("m", b"") == two.generations.namespace("m", b"")
    assert deaf.generations.namespace("m", b"") == b""
    two.shared.apply(*records[0], one.origin)
    assert two.generations.number("m") == 3
    assert not two.shared.unloaded("m"), "it was told of"
    two.now += SAME_EVENT
    assert two.shared.unloaded("m")


def test_a_learnt_capacity_is_shared() -> None:
    one, two, deaf = three(capacity=100)
    one.learn("a", "x" * 60)
    booking = one.index.book("a", chain("x" * 60))
    one.learn("a", "y" * 40)
    one.learn("a", "z" * 20)
    for _ in range(5):
        one.now += CAPACITY_INTERVAL
        again = one.index.book("a", chain("x" * 60))
        one.index.learn(again, 60)
    one.index.learn(booking, 1)
    send(one, two)
    found = one.index.stats().backends["a"].capacity_tokens
    assert found != 100
    assert two.index.stats().backends["a"].capacity_tokens == pytest.approx(found, rel=0.02)
    assert deaf.index.stats().backends["a"].capacity_tokens == 100


def test_backends_that_are_not_here_are_counted_and_their_epochs_kept() -> None:
    one, two, _ = three()
    one.index.add_backend("c", 1000)
    one.index.reset_backend("c")
    one.learn("c", "text")
    send(one, two)
    assert two.shared.unknown == 2
    two.index.add_backend("c", 1000)
    one.learn("c", "text")
    two.learn("c", "other")
    send(one, two)
    send(two, one)  # it asks for what it has lost
    send(one, two)
    assert two.held("text") == {"c": 4}
    assert two.held("other") == {"c": 5}, "the epoch was known: this was not learnt before it"


def test_a_fresh_replica_starts_from_a_snapshot() -> None:
    one, two, deaf = three()
    one.learn("a", HEAD + "first")
    one.learn("b", HEAD + "second")
    one.learn("a", HEAD + "third")
    one.index.book("a", chain(HEAD + "third, not yet accepted"))
    one.index.book("b", chain("not yet accepted"))
    one.generations.raise_for("m")
    load(one, two)
    for text in ("first", "second", "third"):
        assert two.held(HEAD + text) == one.held(HEAD + text)
    assert two.held(HEAD + "third, not yet")["a"] == len(HEAD) + 5
    assert two.held("not yet accepted") == {}
    assert two.generations.number("m") == 1
    assert deaf.held(HEAD + "first") == {}


def test_a_snapshot_keeps_the_order_of_uses_and_how_long_ago_they_were() -> None:
    one, two, _ = three(capacity=20)
    for text in ("aaaaaa", "bbbbbb", "cccccc", "aaaaaa"):
        one.learn("a", text)
    load(one, two)
    for replica in (one, two):
        replica.learn("a", "dddddd")
    for text in ("aaaaaa", "bbbbbb", "cccccc", "dddddd"):
        assert two.index.match(chain(text)) == one.index.match(chain(text))
    assert two.held("bbbbbb") == {"a": 2}


def test_a_snapshot_waits_for_backends_that_are_discovered_later() -> None:
    one, two, late = Replica(1, "a", "b"), Replica(2, "a"), Replica(3, "a")
    one.learn("b", "text")
    for replica in (two, late):
        load(one, replica)
        assert replica.held("text") == {}, "not a backend yet"
    one.outbox.clear()
    one.learn("b", "text, more")
    records = send(one, two)
    two.index.add_backend("b", 1000)
    assert two.held("text, more") == {"b": 10}
    late.now += AWAIT_SECONDS
    late.shared.apply(*records[0], one.origin)
    late.index.add_backend("b", 1000)
    assert late.held("text") == {}
    late.index.reclaim(100)
    assert late.index.stats().blocks == 0


def test_a_snapshot_that_cannot_be_read() -> None:
    one, two, _ = three()
    one.learn("a", "text")
    (chunk,) = one.shared.dump()
    with pytest.raises(BadRecord, match="version 99"):
        two.shared.loader().feed(bytes([99]) + chunk[1:])
    loader = two.shared.loader()
    with pytest.raises(BadRecord):
        loader.feed(chunk[:-5])
    with pytest.raises(BadRecord, match="without its end"):
        two.shared.loader().finish()


def test_a_record_that_cannot_be_read_changes_nothing() -> None:
    one, two, _ = three()
    one.learn("a", HEAD)
    one.learn("a", HEAD + "more")
    one.index.reset_backend("a")
    one.index.flush()
    one.generations.raise_for("m")
    for kind, record in send(one):
        for length in range(len(record)):
            with pytest.raises(BadRecord):
                two.shared.apply(kind, record[:length], one.origin)
        with pytest.raises(BadRecord):
            two.shared.apply(kind, record + b"\0", one.origin)
    with pytest.raises(BadRecord):
        two.shared.apply(Kind.LOAD, b"", one.origin)
    assert two.index.stats().nodes == 0
    assert two.index.holder("a").epoch == 0


@pytest.mark.parametrize("loss", ["reset", "flush", "remove"])
def test_what_is_made_void_while_a_snapshot_is_loaded_stays_void(loss: str) -> None:
    one, two, kept = three()
    for number in range(40):
        one.learn("a", f"{number:02}")
        one.learn("b", f"{number:02}")
    chunks = list(dump(one.index, one.generations, step_uses=5))
    for replica in (two, kept):
        loader = replica.shared.loader()
        for number, chunk in enumerate(chunks):
            loader.feed(chunk)
            if number == 3 and replica is two:
                assert two.held("39") == {"a": 2}
                if loss == "reset":
                    two.index.reset_backend("a")
                elif loss == "flush":
                    two.index.flush()
                else:
                    two.index.remove_backend("a")
        loader.finish()
        assert_sound(replica.index)
    for number in range(40):
        assert "a" not in two.held(f"{number:02}")
        assert kept.held(f"{number:02}") == {"a": 2, "b": 2}
    two.index.reclaim(1000)
    stats = two.index.stats()
    assert stats.dead_blocks == 0


def test_a_snapshot_is_small_and_comes_in_steps() -> None:
    random.seed(3)
    one, two, _ = three()
    head = random.randbytes(8 * 20)
    for _ in range(1500):
        prompt = head + random.randbytes(8 * random.randint(40, 90))
        for end in (len(prompt) // 16 * 8, len(prompt)):  # two turns
            one.index.confirm(one.index.book(random.choice("ab"), prompt[:end]))
    chunks = list(one.shared.dump())
    blocks = one.index.stats().blocks
    assert sum(map(len, chunks)) < 9 * blocks
    assert max(map(len, chunks)) < CHUNK_BYTES + 1000
    loader = two.shared.loader()
    for chunk in chunks:
        loader.feed(chunk)
    loader.finish()
    assert two.index.stats().held_blocks == one.index.stats().held_blocks > 90_000
    assert two.index.stats().blocks == blocks


@given(st.sampled_from(sorted(Kind)), st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes_are_taken_or_refused(kind: Kind, noise: bytes, at: int) -> None:
    one, two, _ = three()
    one.learn("a", HEAD)
    (chunk,) = one.shared.dump()
    for step in (
        lambda: two.shared.apply(kind, noise, one.origin),
        lambda: two.shared.apply(kind, b"\x01a" + noise, one.origin),
        lambda: two.shared.loader().feed(chunk[:at] + noise + chunk[at + len(noise) :]),
    ):
        with suppress(BadRecord):
            step()
    assert_sound(two.index)
