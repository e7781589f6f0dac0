"""Which of all holders' blocks are the least recent."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from gateway.prefix.holder import Holder, Touch

_SLACK = 16


class Recency:
    """Finds the least recent touch of all holders without asking each of them.

    A heap with one entry per holder, by its oldest touch; an entry may say less than is true by
    now, as touches go, and is put right when it comes up.
    """

    __slots__ = ("_heap", "_limit", "_numbers", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Holder]] = []
        self._times: dict[Holder, int] = {}
        self._numbers = count()
        self._limit = _SLACK

    def note(self, holder: Holder) -> None:
        """A holder has a new oldest touch, which may be older than the one before."""
        assert holder.oldest is not None, "it has just been given one"
        time = holder.oldest.time
        noted = self._times.get(holder)
        if noted is not None and noted <= time:
            return
        self._times[holder] = time
        heappush(self._heap, (time, next(self._numbers), holder))
        if len(self._heap) > self._limit:
            self._tidy()

    def oldest(self) -> Touch:
        """The least recent touch; there must be one."""
        heap = self._heap
        while True:
            time, _, holder = heap[0]
            oldest = holder.oldest
            if self._times.get(holder) != time or oldest is None:
                heappop(heap)
                if oldest is None:
                    self._times.pop(holder, None)
            elif oldest.time != time:
                self._times[holder] = oldest.time
                heapreplace(heap, (oldest.time, next(self._numbers), holder))
            else:
                return oldest

    def _tidy(self) -> None:
        """Forget holders that have nothing: they may be long gone."""
        holders = [(holder.oldest, holder) for holder in self._times]
        self._times = {holder: oldest.time for oldest, holder in holders if oldest is not None}
        self._heap = [(time, next(self._numbers), holder) for holder, time in self._times.items()]
        heapify(self._heap)
        self._limit = 2 * len(self._heap) + _SLACK
