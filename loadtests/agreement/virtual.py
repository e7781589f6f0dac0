"""A slice in virtual time."""

from __future__ import annotations

from gateway.config import Scheduling
from loadtests.agreement.figures import Figures, figures
from loadtests.agreement.setup import Setup
from loadtests.replay import arm
from loadtests.replay.arrivals import spread
from loadtests.replay.player import Player, Scenario
from loadtests.replay.trace import Trace

RUNS = 8


def play(trace: Trace, policy: str, setup: Setup) -> list[Figures]:
    """`RUNS` runs with arrivals moved by up to 50 ms.

    A request that comes a little later may go elsewhere, and caches differ from there on. A live
    run is one of these at random; how far they are apart is how far it may be from their mean.

    Args:
        trace: a slice.
    """
    return [_play(spread(trace, seed), policy, setup) for seed in range(RUNS)]


def _play(trace: Trace, policy: str, setup: Setup) -> Figures:
    player = Player(Scenario(trace, setup.fleet), arm.find(policy, Scheduling()))
    player.play()
    results = player.results
    prompt = sum(result.input_tokens for result in results if result.last is not None)
    cached = sum(result.cached_tokens for result in results)
    return figures(
        len(results),
        cached / prompt,
        (result.ttft for result in results),
        (result.tpot for result in results),
    )
