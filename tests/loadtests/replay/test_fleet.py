from __future__ import annotations

import pytest

from gateway.config import ConfigError
from loadtests.replay.fleet import Fleet, SlowDown, cold_seconds
from loadtests.replay.player import Player, Scenario
from loadtests.replay.trace import Trace
from loadtests.sim.timeline import VirtualTimeline
from tests.loadtests.replay.made import BLOCK, PREFILL, PROFILE, ROTATE, STEP, fleet, request, trace


def ttfts(made: Trace, engines: Fleet) -> list[float | None]:
    player = Player(Scenario(made, engines), ROTATE)
    player.play()
    return [result.ttft for result in player.results]


def test_a_slower_engine_takes_longer() -> None:
    made = trace(request(0, tokens=1000), request(0, tokens=1000))
    first, second = ttfts(made, Fleet(PROFILE, (1.0, 0.5)))
    assert first == pytest.approx(STEP + 1000 * PREFILL)
    assert second == pytest.approx(2 * (STEP + 1000 * PREFILL))


def test_an_engine_can_become_slow_in_mid_run() -> None:
    made = trace(*(request(10 * n, tokens=1000) for n in range(4)))
    engines = Fleet(PROFILE, (1.0, 1.0), (SlowDown(0, 15.0, 3.0),))
    alone = STEP + 1000 * PREFILL
    assert ttfts(made, engines) == pytest.approx([alone, alone, 3 * alone, alone])


def test_a_step_that_is_under_way_ends_as_it_began() -> None:
    made = trace(request(0, tokens=1000, output_tokens=3))
    engines = Fleet(PROFILE, (1.0,), (SlowDown(0, 0.5, 2.0),))
    player = Player(Scenario(made, engines), ROTATE)
    player.play()
    [result] = player.results
    assert result.first == pytest.approx(STEP + 1000 * PREFILL)
    assert result.last == pytest.approx(result.first + 2 * 2 * STEP)


def test_a_cold_prefill_is_what_an_idle_engine_takes() -> None:
    for tokens in (1, 2048, 2049, 5000):
        [ttft] = ttfts(trace(request(0, tokens=tokens)), fleet())
        assert ttft == pytest.approx(cold_seconds(PROFILE, tokens))


def test_caches_add_up() -> None:
    assert fleet(3).cache_tokens == 3 * 64 * BLOCK


def test_what_no_engine_can_serve_is_said_before() -> None:
    fleet().check(trace(request(0, tokens=64 * BLOCK - 11)))
    with pytest.raises(ConfigError, match=r"at 7\.000 s has 32769 tokens, .* room for 32768"):
        fleet().check(trace(request(7, tokens=64 * BLOCK - 10)))
    with pytest.raises(ConfigError, match="block_size 24"):
        fleet(block_size=24).engines(VirtualTimeline(), BLOCK)
