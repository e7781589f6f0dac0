from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.config import ClassLimits, Scheduling
from gateway.http.spill import SpillCause, spill_cause
from gateway.scheduling.hold import Hold
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.reported import Others
from gateway.types import Decision, Match, Reason, Role, WorkClass
from policies.base import RouteRequest
from policies.registry import build

NOW = 100.0
REQUEST = RouteRequest(
    "m",
    prompt_tokens=8000,
    output_tokens=300,
    match=Match({"warm": 60, "other": 3}, {"warm": 7000.0, "other": 90.0}),
    now=NOW,
)


class Site:
    """A backend that holds most of the request's prompt, and the one that it went to."""

    def __init__(self, **limits: int) -> None:
        scheduling = Scheduling(decode=ClassLimits(**limits), ranges=())
        policy = build("prefix_affinity", {})
        self.pool = Pool("m", Role.UNIFIED, policy, scheduling, lambda: NOW)
        self.warm, self.cold = BackendLoad("warm", capacity_tokens=50_000.0), BackendLoad("cold")
        self.pool.set_backends([self.warm, self.cold])

    def lease(self, prompt_tokens: int, seconds: float) -> Lease:
        decision = Decision("warm", Reason.PREFIX)
        return Lease(
            self.warm,
            decision,
            WorkClass.DECODE,
            prompt_tokens,
            int(seconds * 10_000),
            seconds,
            lambda: NOW,
        )

    def cause(self, avoid: tuple[str, ...] = ()) -> SpillCause:
        return spill_cause(REQUEST, "cold", self.pool, avoid)


def test_prefill_that_goes_first() -> None:
    site = Site()
    site.lease(5000, 3.0)
    assert site.cause() is SpillCause.QUEUE


def test_streams() -> None:
    site = Site()
    for _ in range(20):
        site.lease(1000, 0.001).first_token()
    assert site.cause() is SpillCause.DECODE


def test_a_full_cache() -> None:
    site = Site()
    site.lease(49_000, 0.1).first_token()
    assert site.cause() is SpillCause.MEMORY


def test_a_limit() -> None:
    site = Site(max_requests=1)
    site.lease(100, 0.01)
    assert site.cause() is SpillCause.FULL


def test_a_cache_that_is_full_as_the_engine_says() -> None:
    site = Site()
    site.warm.set_others(Others(requests=3, excess=49_000.0, tokens=49_000))
    assert site.cause() is SpillCause.MEMORY
    assert site.pool.hold(site.warm, REQUEST) is Hold.MEMORY


def test_a_backend_that_is_gone() -> None:
    site = Site()
    site.pool.set_backends([site.cold])
    assert site.cause() is SpillCause.GONE


def test_the_chosen_one_may_be_gone_too() -> None:
    """A request that waited hears of its lease a moment later; by then its backend can be out."""
    site = Site()
    site.pool.set_backends([site.warm])
    site.lease(5000, 3.0)
    assert site.cause() is SpillCause.QUEUE


def test_a_backend_whose_cache_is_gone_since() -> None:
    nothing = replace(REQUEST, match=Match())
    assert spill_cause(nothing, "cold", Site().pool, ()) is SpillCause.GONE


def test_a_backend_that_failed_the_request() -> None:
    site = Site()
    site.lease(5000, 3.0)
    assert site.cause(("warm",)) is SpillCause.FAILED


@pytest.mark.parametrize("policy", ["least_load", "round_robin"])
def test_no_policy_is_asked(policy: str) -> None:
    site = Site()
    site.pool.policy = build(policy, {})
    site.lease(5000, 3.0)
    assert site.cause() is SpillCause.QUEUE
