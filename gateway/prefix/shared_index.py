"""The index as one of several: what it learns others hear, and what they learn it takes in."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.prefix.dump import Load, dump
from gateway.prefix.entries import Capacity, Cleared, Reset, Used, Wanted, hints_of
from gateway.prefix.finding import find
from gateway.prefix.generations import Generations
from gateway.prefix.hearsay import Hearsay
from gateway.prefix.holder import Holder
from gateway.prefix.index import TIME_BITS, PrefixIndex
from gateway.prefix.told import Told
from gateway.prefix.tree import Node
from gateway.shared.records import BadRecord, Kind, Origin, Publisher
from gateway.types import HASH_BYTES, Chain, Clock

WANTED_PER_SECOND = 200
"""Uses that are asked for in full, at most."""

AWAIT_SECONDS = 60.0
"""For how long what a snapshot says of backends that are not here is kept: they may be discovered
a little later."""

CAPACITY_CHANGE = 1.02
CAPACITY_INTERVAL = 1.0
"""A capacity is told when it has changed by this factor, and no sooner than seconds after the last
time."""


class SharedIndex:
    """Keeps an index in step with those of other replicas. For the feed it is a `Subscriber`, the
    `Snapshotter` and a `Heartbeat`.

    Evictions are not told: each replica evicts the least recent of the same uses, in the order of
    times that they all share.

    Args:
        index: of this replica; from now on this is its journal.
        generations: of this replica, likewise.
        publisher: to the other replicas.
        clock: seconds, monotonic.
        origin: names this replica.

    Attributes:
        learnt: uses told to others.
        applied: others' uses taken in.
        gaps: others' uses that build on what is not known here.
        asked: of those, asked for in full.
        answered: uses told again in full.
        stale: others' uses dropped for their epoch, which is over.
        unknown: others' records dropped because the backend is not known here.
    """

    kinds = frozenset({Kind.USED, Kind.RESET, Kind.CLEARED, Kind.CAPACITY, Kind.WANTED})

    def __init__(
        self,
        index: PrefixIndex,
        generations: Generations,
        publisher: Publisher,
        clock: Clock,
        origin: Origin,
    ) -> None:
        self.learnt = 0
        self.applied = 0
        self.gaps = 0
        self.asked = 0
        self.answered = 0
        self.stale = 0
        self.unknown = 0
        self._index = index
        self._generations = generations
        self._publisher = publisher
        self._clock = clock
        self._origin = origin
        self._told = Told(clock)
        self._restarts = Hearsay(clock)
        self._unloads = Hearsay(clock)
        self._capacities: dict[str, tuple[float, int]] = {}
        self._await_until: float | None = None
        self._allowance = float(WANTED_PER_SECOND)
        self._allowed_at = clock()
        index.set_stamp(_stamp(origin))
        index.journal = self
        generations.raised = self._raised

    # what happens here

    def restarted(self, id: str) -> bool:
        """This replica has seen an engine restart: reset its backend, unless that has happened
        because another replica told of the same restart. Says whether it was reset.

        Raises:
            KeyError: there is no such backend.
        """
        if self._restarts.is_news(id):
            holder = self._index.holder(id)
            if holder is None:
                raise KeyError(id)
            self._index.begin_epoch(id, holder.epoch + 1)
            self._publish(Kind.RESET, Reset(id, holder.epoch + 1, restart=True))
            return True
        return False

    def unloaded(self, model: str) -> bool:
        """This replica has seen a model go from a backend: begin a new generation of it, unless
        that has happened because another replica told of the same. Says whether one began."""
        if self._unloads.is_news(model):
            self._generations.raise_for(model)
            return True
        return False

    def used(self, holder: Holder, chain: Chain, time: int, path: list[Node], known: int) -> None:
        number = time >> TIME_BITS
        full = Used(holder.id, holder.epoch, number, chain)
        hints = hints_of(path, known)
        at = known * HASH_BYTES
        if at > HASH_BYTES + len(hints) * (HASH_BYTES + 1):
            last = chain[at - HASH_BYTES : at]
            short = Used(holder.id, holder.epoch, number, chain[at:], known, last, hints)
            self._publish(Kind.USED, short)
            self._told.keep(full)
        else:
            self._publish(Kind.USED, full)
        self.learnt += 1

    def reset(self, holder: Holder) -> None:
        self._publish(Kind.RESET, Reset(holder.id, holder.epoch, restart=False))

    def flushed(self) -> None:
        epochs = {holder.id: holder.epoch for holder in self._index.holders()}
        self._publish(Kind.CLEARED, Cleared(epochs=epochs))

    def revised(self, holder: Holder) -> None:
        now = self._clock()
        at, limit = self._capacities.get(holder.id, (now - CAPACITY_INTERVAL, 0))
        little = limit and 1 / CAPACITY_CHANGE < holder.limit / limit < CAPACITY_CHANGE
        if now - at < CAPACITY_INTERVAL or little:
            return
        self._capacities[holder.id] = (now, holder.limit)
        self._publish(Kind.CAPACITY, Capacity(holder.id, holder.limit))

    # what others tell

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        """Take in another replica's record.

        Raises:
            BadRecord: it cannot be read; nothing has changed.
        """
        match kind:
            case Kind.USED:
                self._apply_used(Used.decode(record), origin)
            case Kind.RESET:
                self._apply_reset(Reset.decode(record))
            case Kind.CLEARED:
                self._apply_cleared(Cleared.decode(record))
            case Kind.CAPACITY:
                self._apply_capacity(Capacity.decode(record))
            case Kind.WANTED:
                self._answer(Wanted.decode(record))
            case _:
                raise BadRecord(f"{kind!r} is not about prefixes")

    def missed(self, origin: Origin) -> None:
        """Nothing to do: a use that builds on what was lost is found out when it comes, and what
        became void is told again with the next sign of life."""

    def gone(self, origin: Origin) -> None:
        """Nothing to do: what a replica has learnt is true without it."""

    def state(self) -> Iterator[tuple[Kind, bytes]]:
        """What is void, to be told with every sign of life: where a reset was lost on its way,
        others would otherwise go on believing until they hear of a use after it."""
        epochs = {holder.id: holder.epoch for holder in self._index.holders() if holder.epoch}
        generations = self._generations.numbers()
        if epochs or generations:
            yield Kind.CLEARED, Cleared(epochs, generations).encode()

    # what replicas start from

    def dump(self) -> Iterator[bytes]:
        """All that is known for certain, chunk by chunk; each takes a few milliseconds at most."""
        return dump(self._index, self._generations)

    def loader(self) -> Load:
        """Takes in what another replica's `dump` gave. Backends that are not here by
        `AWAIT_SECONDS` from now are forgotten."""
        self._await_until = self._clock() + AWAIT_SECONDS
        return Load(self._index, self._generations)

    # how it is done

    def _apply_used(self, used: Used, origin: Origin) -> None:
        index = self._index
        if self._await_until is not None and self._clock() >= self._await_until:
            self._await_until = None
            index.give_up()
        holder = index.holder(used.backend)
        if holder is None:
            index.begin_epoch(used.backend, used.epoch)
            self.unknown += 1
            return
        if used.epoch != holder.epoch:
            if used.epoch < holder.epoch:
                self.stale += 1
                return
            index.begin_epoch(used.backend, used.epoch)
            holder = index.holder(used.backend)
            if holder is None:  # it was only awaited
                return
        chain = used.new
        if used.known:
            before = find(index.tree, used)
            if before is None:
                self.gaps += 1
                self._ask(Wanted(origin, used.number))
                return
            chain = before + chain
        index.hold(holder, chain, used.number << TIME_BITS | _stamp(origin))
        self.applied += 1

    def _apply_reset(self, reset: Reset) -> None:
        holder = self._index.holder(reset.backend)
        self._index.begin_epoch(reset.backend, reset.epoch)
        if holder is None:
            self.unknown += 1
        elif reset.restart and holder.epoch < reset.epoch:
            self._restarts.heard(reset.backend)

    def _apply_cleared(self, cleared: Cleared) -> None:
        for id, epoch in cleared.epochs.items():
            self._index.begin_epoch(id, epoch)
        for model, number in cleared.generations.items():
            if self._generations.raise_to(model, number):
                self._unloads.heard(model)

    def _apply_capacity(self, capacity: Capacity) -> None:
        holder = self._index.holder(capacity.backend)
        if holder is None:
            self.unknown += 1
        else:
            self._index.revise(holder, capacity.limit)

    def _answer(self, wanted: Wanted) -> None:
        if wanted.origin != self._origin:
            return
        used = self._told.again(wanted.number)
        if used is not None:
            self._publish(Kind.USED, used)
            self.answered += 1

    def _ask(self, wanted: Wanted) -> None:
        now = self._clock()
        earned = (now - self._allowed_at) * WANTED_PER_SECOND
        self._allowance = min(self._allowance + earned, WANTED_PER_SECOND)
        self._allowed_at = now
        if self._allowance >= 1:
            self._allowance -= 1
            self._publish(Kind.WANTED, wanted)
            self.asked += 1

    def _raised(self, model: str, number: int) -> None:
        self._publish(Kind.CLEARED, Cleared(generations={model: number}))

    def _publish(self, kind: Kind, entry: Used | Reset | Cleared | Capacity | Wanted) -> None:
        self._publisher.publish(kind, entry.encode())


def _stamp(origin: Origin) -> int:
    return int.from_bytes(origin[: TIME_BITS // 8], "little")
