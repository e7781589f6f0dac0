"""The short form of `make agreement`: real processes, a few seconds of traffic."""

from __future__ import annotations

from loadtests.agreement import live, virtual
from loadtests.agreement.figures import hit_gap, mean, swapped
from loadtests.agreement.setup import Setup
from loadtests.agreement.workload import cut
from loadtests.replay import source

SETUP = Setup(engines=3, speed=2.0, kv_tokens=24_576)
SOURCE = (
    "gen:shared?rate=12&seconds=8&systems=9&skew=0&system_tokens=4000&message_tokens=200"
    "&output_tokens=30"
)
HIT_BOUND = 0.06
"""A hundred requests: one that goes elsewhere is half a point or more."""


def test_the_live_gateway_does_what_virtual_time_says() -> None:
    trace = cut(source.find(SOURCE)(2), 8.0, 1.0, SETUP.profile.max_model_len)
    policies = ("prefix_affinity", "round_robin")
    expected = {policy: mean(virtual.play(trace, policy, SETUP)) for policy in policies}
    played = {policy: live.play(trace, policy, SETUP).figures for policy in policies}
    for figures in played.values():
        assert figures.requests == len(trace.requests)
        assert figures.failed == 0
    assert expected["prefix_affinity"].hit > expected["round_robin"].hit + 0.2
    assert swapped(expected, played) == []
    assert hit_gap(expected, played) <= HIT_BOUND
