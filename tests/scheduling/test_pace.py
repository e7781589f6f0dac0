"""Prefills that are held for the sake of the streams beside them."""

from __future__ import annotations

from math import inf

import msgspec
import pytest

from gateway.scheduling.hold import Hold
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import LONGEST_HOLD
from gateway.scheduling.pool import Pool
from gateway.scheduling.streams import _AIM
from gateway.types import Match, Priority, Role
from policies.registry import build
from tests.scheduling.virtual import DECODE, PREFILL, Caller, VirtualClock, ask, is_clear, limits

LARGE = 50_000
"""Tokens that take 6 s beside a stream."""
PACE = 0.1 / _AIM


class Backend:
    """One backend that streams a token each 0.1 s, which is just the pace aimed at."""

    def __init__(self, **options: object) -> None:
        self.clock = VirtualClock()
        self.load = BackendLoad(
            "a",
            prefill_rate=10_000.0,
            attention_context=inf,
            chunk_tokens=1000,
            step_seconds=0.02,
            stream_seconds=0.0,
            context_seconds=0.0,
        )
        scheduling = limits(**{"gate": 0.5, "pace": PACE, "pace_tolerance": 0.0, **options})
        self.pool = Pool("m", Role.UNIFIED, build("least_load", {}), scheduling, self.clock)
        self.pool.set_backends([self.load])

    def stream(self, tokens: int = 0) -> Caller:
        caller = self.ask(tokens)
        began = self.clock.now
        caller.lease.progress = lambda: 1 + round((self.clock.now - began) / 0.1)
        caller.lease.first_token()
        return caller

    def ask(
        self,
        tokens: int,
        target: float = inf,
        priority: Priority = Priority.NORMAL,
        **options: object,
    ) -> Caller:
        now = self.clock.now
        request = ask(PREFILL, tokens, now=now, deadline=now + target)
        request = msgspec.structs.replace(request, priority=priority)
        return Caller(request, **options).submit(self.pool)

    def waits_for(self, caller: Caller, most: float) -> float:
        """Seconds until a caller goes, while each second a stream begins and another one ends."""
        began, stream = self.clock.now, self.stream()
        while caller.waits:
            assert self.clock.now - began < most + 0.11
            if round(10 * (self.clock.now - began)) % 10 == 0:
                stream, ends = self.stream(), stream
                ends.lease.release()
            self.clock.advance(0.1)
            self.pool.expire()
        stream.lease.release()
        return self.clock.now - began


def test_what_low_priority_earns_by_waiting_falls_to_high() -> None:
    backend = Backend(pace_tolerance=0.0)
    backend.stream()
    low = backend.ask(LARGE, target=6.0, priority=Priority.LOW)
    backend.clock.advance(LONGEST_HOLD * 6.0 - 2.0)
    high = backend.ask(LARGE, target=6.0, priority=Priority.HIGH)
    assert low.waits
    assert backend.waits_for(high, most=3.0) <= 3.0
    assert low.waits


def test_a_prefill_that_streams_cannot_bear_is_held_until_they_end() -> None:
    backend = Backend()
    stream = backend.stream()
    held = backend.ask(LARGE, target=10.0)
    assert held.waits
    assert backend.pool.is_open(backend.load)
    stream.lease.release()
    assert held.leases


def test_why_one_would_be_held() -> None:
    backend = Backend()
    pool, load = backend.pool, backend.load
    large = ask(PREFILL, LARGE, now=backend.clock.now)
    assert pool.hold(load, large) is None
    backend.stream()
    assert pool.hold(load, large) is Hold.STREAMS
    assert pool.held_for(load) is None
    backend.ask(LARGE, target=10.0)
    assert pool.held_for(load) is Hold.STREAMS
    load.capacity_tokens = LARGE
    assert pool.hold(load, large) is Hold.MEMORY
    backend.ask(6000)
    assert pool.hold(load, large) is Hold.GATE


@pytest.mark.parametrize("options", [{"pace": None}, {"gate": None}])
def test_without_pace_or_gate_nothing_is_held(options: dict[str, None]) -> None:
    backend = Backend(**options)
    backend.stream()
    assert backend.ask(LARGE, target=10.0).leases


def test_one_that_streams_can_bear_goes() -> None:
    backend = Backend()
    backend.stream()
    assert backend.ask(1000, target=10.0).leases


def test_what_brings_nothing_to_prefill_is_never_held() -> None:
    backend = Backend()
    for _ in range(20):
        backend.stream()
        backend.clock.advance(0.3)
    assert backend.load.spoilt_streams(backend.clock.now, 1.0) > 0.0
    hit = ask(DECODE, LARGE, Match({"a": 9}, {"a": float(LARGE)}), now=backend.clock.now)
    assert Caller(hit).submit(backend.pool).leases


def test_nobody_is_held_behind_one_that_is_held() -> None:
    backend = Backend()
    backend.stream()
    held = backend.ask(LARGE, target=10.0)
    assert Caller(ask(DECODE, 100)).submit(backend.pool).leases
    assert backend.ask(100).leases
    assert held.waits


def test_the_tolerance_is_a_number_of_streams() -> None:
    backend = Backend()
    backend.stream()
    spoilt = backend.load.spoilt_streams(backend.clock.now, 6.0)
    assert 0.1 < spoilt < 1.0
    for tolerance, held in ((spoilt - 0.01, True), (spoilt, False)):
        backend = Backend(pace_tolerance=tolerance)
        backend.stream()
        assert backend.ask(LARGE, target=10.0).waits is held


@pytest.mark.parametrize("target", [7.0, 8.0])
def test_after_some_times_its_target_it_goes_in_any_case(target: float) -> None:
    backend = Backend()
    backend.stream()
    held = backend.ask(LARGE, target=target)
    longest = LONGEST_HOLD * target
    assert backend.waits_for(held, most=longest) == pytest.approx(longest, abs=0.11)


def test_half_of_the_time_that_it_may_wait_it_is_held_at_most() -> None:
    """However late its first token is due."""
    backend = Backend(prefill={"max_wait": 50.0})
    backend.stream()
    limited = backend.ask(LARGE, target=3600.0)
    assert backend.waits_for(limited, most=25.0) == pytest.approx(25.0, abs=0.11)
    limited.lease.release()
    impatient = backend.ask(LARGE, target=3600.0, max_wait=8.0)
    assert backend.waits_for(impatient, most=4.0) == pytest.approx(4.0, abs=0.11)


def test_one_that_is_not_ready_to_wait_is_not_held() -> None:
    """A retry would fail for the streams' sake."""
    backend = Backend()
    backend.stream()
    assert backend.ask(LARGE, target=10.0, max_wait=0.0).leases


def test_streams_leave_with_their_leases_however_those_end() -> None:
    backend = Backend()
    ended, aborted, unseen = backend.stream(100), backend.ask(100), backend.ask(100)
    aborted.lease.progress = lambda: 1
    unseen.lease.first_token()
    assert len(backend.load.streams) == 1
    for caller in (ended, aborted, unseen):
        caller.lease.release()
        caller.lease.first_token()
    assert is_clear(backend.load)


def test_how_long_answers_are_is_learnt_from_those_that_end() -> None:
    """All end after a hundred tokens: one that has made them all but one bears hardly a stall."""
    backend = Backend()
    for _ in range(2000):
        done = backend.ask(0).lease
        done.first_token()
        done.output_tokens = 100
        done.release()
    backend.stream()
    assert backend.load.spoilt_streams(backend.clock.now, 7.9) == 0.0
    assert backend.load.spoilt_streams(backend.clock.now, 8.0) == 1.0


def test_a_little_of_lower_priority_does_not_go_past_one_that_is_held() -> None:
    """Enough of them would keep the streams going for which it is held."""
    little = LARGE // 500
    for priority, passes in ((Priority.LOW, False), (Priority.NORMAL, True), (Priority.HIGH, True)):
        backend = Backend(pace_tolerance=0.1)
        backend.stream()
        held = backend.ask(LARGE, target=10.0)
        assert held.waits
        assert bool(backend.ask(little, priority=priority).leases) is passes
        # Nor when its turn comes, after the one that is held was looked at.
        late = backend.ask(little, priority=priority)
        backend.pool.expire()
        assert bool(late.leases) is passes
