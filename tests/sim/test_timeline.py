from __future__ import annotations

import asyncio

from loadtests.sim.timeline import LiveTimeline, VirtualTimeline


def test_events_fire_in_time_order_and_then_in_their_own() -> None:
    timeline = VirtualTimeline()
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, timeline.time()))
        if name == "first":
            timeline.call_at(0.0, lambda: note("late"))

    timeline.call_at(2.0, lambda: note("second"))
    timeline.call_at(1.0, lambda: note("first"))
    timeline.call_at(2.0, lambda: note("third"))
    timeline.call_at(1.5, lambda: note("never")).cancel()
    timeline.call_at(9.0, lambda: note("after"))
    timeline.run(until=5.0)
    assert fired == [("first", 1.0), ("late", 1.0), ("second", 2.0), ("third", 2.0)]


def test_live_timers_fire_and_can_be_cancelled() -> None:
    async def main() -> list[str]:
        timeline = LiveTimeline(asyncio.get_running_loop())
        done = asyncio.Event()
        fired: list[str] = []
        timeline.call_at(timeline.time(), lambda: fired.append("cancelled")).cancel()
        timeline.call_at(timeline.time() - 1, lambda: fired.append("overdue"))
        timeline.call_at(timeline.time() + 0.001, done.set)
        assert fired == [], "never from within call_at"
        await done.wait()
        return fired

    assert asyncio.run(main()) == ["overdue"]
