from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Scheduling
from gateway.fleet.engines.engine import EngineLoad
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import Placer
from gateway.scheduling.reported import STUCK_SECONDS, TYPICAL_PROMPT, Reports
from gateway.types import Decision, Match, Reason, WorkClass
from policies.base import RouteRequest
from policies.cost import memory_seconds
from policies.registry import build, names

CAPACITY = 100_000
SMALL = RouteRequest("m", prompt_tokens=100, output_tokens=10)


class Site:
    """One backend, what its engine says, and what is sent there."""

    def __init__(self) -> None:
        self.now = 100.0
        self.load = BackendLoad("a", capacity_tokens=CAPACITY)
        self.failures: list[str] = []
        self.reports = Reports({"a": self.load}, lambda: self.now, self.failures.append)

    def sends(self, prompt_tokens: int, *, streams: bool = True) -> Lease:
        decision = Decision("a", Reason.LOAD)
        lease = Lease(
            self.load,
            decision,
            WorkClass.DECODE,
            prompt_tokens,
            prompt_tokens,
            0.1,
            lambda: self.now,
        )
        if streams:
            lease.first_token()
        return lease

    def says(self, running: int = 0, waiting: int = 0, kv_use: float | None = None) -> None:
        self.tells(EngineLoad(running, waiting, None, kv_use))

    def tells(self, said: EngineLoad, times: int = 2) -> None:
        """Twice, because only what it says twice counts."""
        for _ in range(times):
            self.now += 1.0
            self.reports.asked("a")
            self.reports.answered("a", said)


def test_what_was_sent_there_does_not_count_twice() -> None:
    site = Site()
    leases = [site.sends(10_000) for _ in range(3)]
    site.says(running=3, kv_use=0.3)
    load = site.load
    assert (load.in_flight, load.decoding, load.sent) == (3, 3, 3)
    assert load.memory_with(SMALL) == 30_000 + 100
    assert load.queue_seconds(SMALL) == 0.0
    for lease in leases:
        lease.release()
    assert (load.in_flight, load.decoding, load.other_tokens) == (0, 0, 0)


def test_what_others_sent_there_counts() -> None:
    site = Site()
    site.sends(10_000)
    site.says(running=6, waiting=4, kv_use=0.5)
    load = site.load
    assert (load.in_flight, load.sent) == (10, 1)
    assert load.decoding == 6
    assert load.memory_with(SMALL) == 50_000 + 100
    # Four wait whose sizes it does not say.
    assert load.queue_seconds(RouteRequest("m", prompt_tokens=100, now=site.now)) == pytest.approx(
        4 * TYPICAL_PROMPT / load.prefill_rate
    )
    # What is sent since is added; what ended since is taken off.
    more = site.sends(20_000)
    assert load.memory_with(SMALL) == 70_000 + 100
    assert load.in_flight == 11
    more.release()
    assert (load.in_flight, load.memory_with(SMALL)) == (10, 50_000 + 100)


def test_waiting_tokens_count_as_they_are_and_shrink_with_time() -> None:
    site = Site()
    site.tells(EngineLoad(1, 1, 20_000, 0.1))
    load = site.load
    seconds = 20_000 / load.prefill_rate
    for elapsed, left in ((0.0, seconds), (0.5 * seconds, 0.5 * seconds), (2 * seconds, 0.0)):
        later = RouteRequest("m", now=site.now + elapsed)
        assert load.queue_seconds(later) == pytest.approx(left)
    site.sends(15_000, streams=False)
    site.tells(EngineLoad(1, 1, 20_000, 0.1))
    assert load.others.waiting_tokens == 5000


def test_one_answer_alone_proves_little() -> None:
    """Ours that have just ended are still in the engine's count, and those that have just begun
    are not yet."""
    site = Site()
    site.says(running=0)
    site.tells(EngineLoad(5, 0, None, 0.1), times=1)
    assert site.load.in_flight == 0
    site.tells(EngineLoad(3, 0, None, 0.1), times=1)
    assert site.load.in_flight == 3
    site.tells(EngineLoad(0, 0, None, 0.1), times=1)
    assert site.load.in_flight == 0


def test_what_ends_while_it_is_asked_counts_as_ours() -> None:
    site = Site()
    lease = site.sends(10_000)
    for _ in range(2):
        site.reports.asked("a")
        lease.release()
        site.reports.answered("a", EngineLoad(1, 0, None, 0.1))
        lease = site.sends(10_000)
    assert site.load.in_flight == 1
    assert site.load.other_tokens == 0


def test_an_engine_that_says_less_than_was_sent_is_no_idler() -> None:
    site = Site()
    site.sends(40_000)
    site.says(running=1, kv_use=0.01)
    assert site.load.in_flight == 1
    assert site.load.memory_with(SMALL) == 40_000 + 100


def test_silence_is_neither_full_nor_idle() -> None:
    site = Site()
    lease = site.sends(10_000)
    before = (site.load.in_flight, site.load.memory_with(SMALL))
    site.says(running=50, waiting=50, kv_use=0.99)
    assert site.load.is_full(0.9)
    site.reports.failed("a")
    site.reports.lost("a")
    assert site.failures == ["a"]
    assert (site.load.in_flight, site.load.memory_with(SMALL)) == before
    assert site.load.reported is None
    assert not site.load.is_full(0.0)
    assert site.load.reported_at == site.now
    lease.release()
    assert site.load.in_flight == 0


def test_full_by_what_it_says_and_what_was_sent_since() -> None:
    site = Site()
    site.says(running=1, kv_use=0.85)
    assert not site.load.is_full(0.9)
    lease = site.sends(5000)
    assert site.load.is_full(0.9)
    lease.release()
    assert not site.load.is_full(0.9)


def test_an_engine_that_runs_nothing_has_room() -> None:
    """Whatever it calls in use, it can be thrown out."""
    site = Site()
    site.says(running=0, kv_use=0.99)
    assert not site.load.is_full(0.9)
    assert site.load.other_tokens == 0


def test_a_page_without_counts_is_believed_about_its_cache() -> None:
    site = Site()
    site.tells(EngineLoad(kv_use=0.99))
    assert site.load.is_full(0.9)


def test_a_figure_that_stands_still_keeps_nobody_out_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site()
    stuck = EngineLoad(3, 0, None, 0.97)
    site.tells(stuck, times=int(STUCK_SECONDS))
    assert site.load.is_full(0.9)
    with caplog.at_level(logging.WARNING):
        site.tells(stuck, times=3)
    assert not site.load.is_full(0.9)
    [warning] = caplog.records
    assert "not believed" in warning.getMessage()
    site.says(running=3, kv_use=0.971)
    assert site.load.is_full(0.9)


def test_room_that_comes_free_is_told() -> None:
    site = Site()
    calls: list[str] = []
    site.load.watch(lambda load: calls.append(load.id))
    site.says(running=1, kv_use=0.99)
    assert calls


def test_memory_pressure_costs() -> None:
    site = Site()
    site.says(running=3, kv_use=0.97)
    assert memory_seconds(site.load, SMALL) > 1.0


@pytest.mark.parametrize("policy", names())
def test_full_ones_are_candidates_of_no_policy(policy: str) -> None:
    site = Site()
    other = BackendLoad("b", capacity_tokens=CAPACITY)
    placer = Placer(build(policy, {}), Scheduling(max_kv_use=0.9))
    placer.set_backends([site.load, other])
    warm = RouteRequest("m", prompt_tokens=100, match=Match({"a": 5}, {"a": 90.0}))
    assert placer.candidates(warm) == [site.load, other]
    site.says(running=3, kv_use=0.95)
    assert placer.candidates(warm) == [other]
    assert placer.is_full(site.load)
    placer.scheduling = Scheduling(max_kv_use=None)
    assert placer.candidates(warm) == [site.load, other]


def test_unknown_backends_are_ignored() -> None:
    site = Site()
    site.reports.asked("gone")
    site.reports.answered("gone", EngineLoad(1, 1, None, 0.5))
    site.reports.answered("a", EngineLoad(1, 1, None, 0.5))
    site.reports.lost("gone")
    assert site.load.reported is None


SAID = st.builds(
    EngineLoad,
    st.none() | st.integers(0, 10**12),
    st.none() | st.integers(0, 10**12),
    st.none() | st.integers(0, 10**12),
    st.none() | st.floats(0, 1),
)


@given(st.lists(st.one_of(SAID, st.integers(1, 200_000), st.sampled_from("rlf")), max_size=40))
def test_nothing_is_left_whatever_is_said(steps: list[EngineLoad | int | str]) -> None:
    site = Site()
    leases: list[Lease] = []
    for step in steps:
        site.now += 1.0
        if isinstance(step, EngineLoad):
            site.tells(step, times=1)
        elif isinstance(step, int):
            leases.append(site.sends(step))
        elif step == "r" and leases:
            leases.pop(0).release()
        elif step == "l":
            site.reports.lost("a")
        load = site.load
        assert load.sent == len(leases) == load.decode.in_flight
        assert load.in_flight >= load.sent
        assert load.decoding >= len(leases)
        assert load.memory_with(SMALL) >= load.memory_tokens
        assert load.queue_seconds(RouteRequest("m", now=site.now)) >= 0.0
    for lease in leases:
        lease.release()
    site.reports.lost("a")
    assert (site.load.in_flight, site.load.decoding, site.load.other_tokens) == (0, 0, 0)
