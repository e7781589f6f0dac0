"""Announcements between replicas within one process, which can be cut."""

from __future__ import annotations

import asyncio

from gateway.shared.records import Kind, Subscriber


class Bus:
    """Attributes:
    cut: nothing is delivered.
    """

    def __init__(self) -> None:
        self.cut = False
        self._all: list[tuple[bytes, Subscriber]] = []

    def join(self, subscriber: Subscriber) -> BusPublisher:
        origin = len(self._all).to_bytes(8, "big")
        self._all.append((origin, subscriber))
        return BusPublisher(self, origin)

    def deliver(self, kind: Kind, record: bytes, origin: bytes) -> None:
        for other, subscriber in self._all:
            if other != origin and kind in subscriber.kinds and not self.cut:
                subscriber.apply(kind, record, origin)


class BusPublisher:
    """Satisfies `Publisher`."""

    def __init__(self, bus: Bus, origin: bytes) -> None:
        self._bus, self._origin = bus, origin

    def publish(self, kind: Kind, record: bytes) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._bus.deliver, kind, record, self._origin)
