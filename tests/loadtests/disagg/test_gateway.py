"""Traces through engines with roles, in virtual time."""

from __future__ import annotations

import pytest

from gateway.types import Role
from loadtests.disagg.comparison import engines
from loadtests.disagg.fleet import PREFILL_CHUNK, ratio
from loadtests.disagg.gateway import RoleGateway
from loadtests.disagg.tally import Tally
from loadtests.disagg.ways import Way, Wire, front, fronts
from loadtests.replay import source
from loadtests.replay.player import Player, Scenario
from loadtests.replay.trace import Trace
from loadtests.sim.timeline import VirtualTimeline

PACE = 0.1


@pytest.fixture(scope="module")
def trace() -> Trace:
    return source.find("gen:chat?rate=4&seconds=40")(1)


def play(
    trace: Trace, way: Way, wire: Wire | None = None, load: float = 1.0
) -> tuple[Player, Tally]:
    tally = Tally()
    scenario = Scenario(trace, way.fleet(engines()), load=load)
    player = Player(scenario, way.arm(PACE), front=fronts(way, wire or Wire(), tally))
    player.play()
    return player, tally


@pytest.mark.parametrize(
    "way",
    [Way(0, 512), Way(3, 512), Way(7, 512), Way(3, 512, 0), Way(3, 512, 1000)],
    ids=lambda way: f"{way.prefill} {way.name}",
)
@pytest.mark.parametrize("pushed", [False, True])
def test_every_request_is_served_and_all_is_given_back(
    trace: Trace, way: Way, pushed: bool
) -> None:
    player, tally = play(trace, way, Wire(pushed=pushed))
    assert all(result.last is not None for result in player.results)
    gateway = player._gateway
    assert isinstance(gateway, RoleGateway)
    for load in gateway.pool.backends:
        assert (load.in_flight, load.pending, load.decoding, load.memory_tokens) == (0, 0, 0, 0)
    for engine in gateway.engines:
        assert (engine.running, engine.waiting, engine.receiving, engine.kept) == (0, 0, 0, 0)
        assert engine.cache.used == 0
    assert tally.requests == len(trace.requests)
    assert tally.lost == 0


def test_rules_hand_over_what_they_say(trace: Trace) -> None:
    for way, least, most in (
        (Way(0, 512), 0.0, 0.0),
        (Way(3, 512, 0), 1.0, 1.0),
        (Way(3, 512, 10**9), 0.0, 0.0),
    ):
        _, tally = play(trace, way)
        assert least <= tally.remote / tally.requests <= most


def test_a_slower_network_takes_longer(trace: Trace) -> None:
    waits = []
    for gbps in (1.0, 400.0):
        player, _ = play(trace, Way(3, 512, 0), Wire(gbps))
        waits.append(sum(result.ttft or 0.0 for result in player.results))
    assert waits[0] > 1.5 * waits[1]


def test_the_bandwidth_is_learnt(trace: Trace) -> None:
    for gbps in (10.0, 100.0):
        player, _ = play(trace, Way(4, 512, 0), Wire(gbps))
        gateway = player._gateway
        assert isinstance(gateway, RoleGateway)
        learnt = max(gateway.links.bandwidth(id) for id in gateway.places)
        assert learnt == pytest.approx(gbps * 1e9 / 8, rel=0.6)


def test_mixed_engines_behave_as_in_the_plain_replay(trace: Trace) -> None:
    way = Way(0, 512)
    player, _ = play(trace, way)
    plain = Player(Scenario(trace, way.fleet(engines())), way.arm(PACE))
    plain.play()
    assert [result.last for result in player.results] == [result.last for result in plain.results]


def test_engines_have_the_chunks_of_their_roles(trace: Trace) -> None:
    way = Way(2, 640)
    timeline = VirtualTimeline()
    fleet = way.fleet(engines()).engines(timeline, trace.unit_tokens)
    chunks = [engine.profile.max_num_batched_tokens for engine in fleet]
    assert chunks == [PREFILL_CHUNK] * 2 + [640] * 6
    made = front(fleet, way.arm(PACE), trace, timeline, way=way, wire=Wire(), tally=Tally())
    assert len(made.engines) == 8
    assert ratio(0, 2) == (Role.UNIFIED, Role.UNIFIED)
