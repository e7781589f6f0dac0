"""A replica's part of the limits that all replicas share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from gateway.config import ClassLimits, Scheduling
from gateway.scheduling.load import BackendLoad
from gateway.shared.slots import Ask
from gateway.types import WorkClass

WANTED = 40
"""Exchanges for which a slot is wanted after it was last asked for in vain: longer than pools take
to look at everything that waits again."""


GRACE = 0.5
"""Seconds without Redis after which a replica with less than an even part takes that. Between two
that are short of slots most may be with the other at that moment: without this the one could serve
nothing for as long as Redis is away."""


class Allotment:
    """How many requests of one class this replica may have at one backend.

    Attributes:
        allowed: requests in flight up to which more may be sent. What is in flight above it, since
            it was lowered, goes on.
        wanted: for how many exchanges more it counts as wanted.
        is_told: whether Redis has ever said how many are allowed.
    """

    __slots__ = ("_wake", "allowed", "is_told", "wanted")

    def __init__(self, wake: Callable[[], None], allowed: int) -> None:
        self.allowed = allowed
        self.is_told = False
        self.wanted = 0
        self._wake = wake

    def takes(self, in_flight: int) -> bool:
        """Whether one more may be sent. Where not, one more is wanted."""
        if in_flight < self.allowed:
            return True
        if not self.wanted:
            self._wake()
        self.wanted = WANTED
        return False


class Allotments:
    """The allotments at all backends; a `SlotHolder`.

    While Redis cannot be asked allotments stay as they are, so that their sum stays within the
    limits; but nobody waits for Redis. Where one is less than an even part among the replicas that
    are known of, and not enough for what waits, that part is taken after `GRACE`; where Redis has
    never said anything of one, because it was away ever since the replica started or the backend
    came, at once.

    Args:
        scheduling: the limits of the moment.
        replicas: how many replicas there are, this one included, as far as is known.

    Attributes:
        wake: called when a slot is wanted; to be set before the first backend is attached.
        usable: set once there are backends, and something may be sent to each.
    """

    def __init__(
        self,
        scheduling: Callable[[], Scheduling],
        replicas: Callable[[], int],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.wake = wake
        self.usable = asyncio.Event()
        self._scheduling = scheduling
        self._replicas = replicas
        self._loads: dict[str, BackendLoad] = {}
        self._asked: list[tuple[BackendLoad, Allotment]] = []

    @property
    def guessed(self) -> int:
        """How many allotments are this replica's own guess."""
        return sum(not allotment.is_told and allotment.allowed > 0 for allotment in self._all())

    @property
    def is_short(self) -> bool:
        """Whether anybody waits for a slot, or has one that should go to another replica."""
        return any(
            own.allotment is not None
            and (own.allotment.wanted > 0 or own.own > own.allotment.allowed)
            for load in self._loads.values()
            for own in (load.prefill, load.decode)
        )

    def attach(self, load: BackendLoad) -> None:
        """Hold a backend's limits together with the other replicas from now on."""
        self._loads[load.id] = load
        for work_class in WorkClass:
            own = load.of(work_class)
            own.allotment = Allotment(self.wake, own.own)

    def detach(self, load: BackendLoad) -> None:
        del self._loads[load.id]
        load.prefill.allotment = load.decode.allotment = None

    def asks(self) -> list[Ask]:
        self._asked, asks = [], []
        for load in self._loads.values():
            for work_class in WorkClass:
                own = load.of(work_class)
                allotment, used = own.allotment, own.own
                assert allotment is not None
                # Until the answer comes no more than this will be in flight.
                held = max(allotment.allowed, used)
                limit = self._limits(work_class).max_requests
                name = f"{work_class[0]} {load.id}"
                wanted = allotment.wanted > 0 and used >= allotment.allowed
                asks.append(Ask(name, limit, held, used, wanted))
                allotment.wanted = max(0, allotment.wanted - 1)
                self._asked.append((load, allotment))
        return asks

    def answered(self, allowed: Sequence[int]) -> None:
        roomier: dict[BackendLoad, None] = {}
        for (load, allotment), count in zip(self._asked, allowed, strict=True):
            allotment.is_told = True
            if count > allotment.allowed:
                roomier[load] = None
            allotment.allowed = count
        self._look()
        for load in roomier:
            load.room_came_free()

    def unanswered(self, seconds: float) -> None:
        """Redis cannot be asked, for so long: where nothing was ever said, or what there is does
        not do, an even part is taken."""
        for load in tuple(self._loads.values()):
            for work_class in WorkClass:
                allotment = load.of(work_class).allotment
                guess = self._guess(work_class)
                if allotment is None or allotment.allowed >= guess:
                    continue
                if allotment.is_told and not (allotment.wanted and seconds >= GRACE):
                    continue
                allotment.allowed = guess
                allotment.is_told = False
                load.room_came_free()
        self._look()

    def _look(self) -> None:
        if self._loads and all(allotment.allowed > 0 for allotment in self._all()):
            self.usable.set()

    def _all(self) -> Iterator[Allotment]:
        for load in self._loads.values():
            for own in (load.prefill, load.decode):
                if own.allotment is not None:
                    yield own.allotment

    def _guess(self, work_class: WorkClass) -> int:
        return max(1, self._limits(work_class).max_requests // max(1, self._replicas()))

    def _limits(self, work_class: WorkClass) -> ClassLimits:
        scheduling = self._scheduling()
        return scheduling.prefill if work_class is WorkClass.PREFILL else scheduling.decode
