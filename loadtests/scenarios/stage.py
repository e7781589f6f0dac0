"""Where a scenario plays: engines in virtual time, a gateway before them, requests as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from gateway.config import Scheduling
from loadtests.replay import arm
from loadtests.replay.cli import KV_TOKENS, RUNNING_TOKENS
from loadtests.replay.fleet import Fleet, SlowDown, cold_seconds
from loadtests.replay.gateway import VirtualGateway
from loadtests.replay.generators.prompt import BLOCK_TOKENS
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim import profile as profiles
from loadtests.sim.timeline import VirtualTimeline

ENGINES = 8


def fleet(
    engines: int = ENGINES,
    speeds: Sequence[float] = (),
    slow_downs: tuple[SlowDown, ...] = (),
) -> Fleet:
    """Engines as `prefixgate replay` has them by default.

    Args:
        speeds: of each engine, where they are not all 1.
    """
    profile = profiles.load(profiles.DEFAULT)
    profile = profile.replace(kv_tokens=KV_TOKENS, max_running_tokens=RUNNING_TOKENS)
    return Fleet(profile, tuple(speeds) or (1.0,) * engines, slow_downs)


class Stage:
    """
    Args:
        policy: an arm as `prefixgate replay` has them.
        engines: eight equal ones by default.
    """

    def __init__(
        self, policy: str, engines: Fleet | None = None, scheduling: Scheduling | None = None
    ) -> None:
        self.fleet = engines or fleet()
        self.timeline = VirtualTimeline()
        chosen = arm.find(policy, scheduling or Scheduling())
        self.gateway = VirtualGateway(
            self.fleet.engines(self.timeline, BLOCK_TOKENS),
            chosen.policy(),
            chosen.scheduling,
            Trace(policy, [], "", BLOCK_TOKENS),
            self.timeline,
            chosen.knowledge,
        )

    def ask(
        self, request: TraceRequest, ended: Callable[[Result], None] = lambda result: None
    ) -> Result:
        """Have a request come when it says.

        Args:
            ended: told when it is served or refused.

        Returns:
            What becomes of it, filled in as it does.
        """
        result = Result(
            request.arrival,
            request.input_tokens,
            request.output_tokens,
            cold_seconds(self.fleet.profile, request.input_tokens),
        )
        enter = partial(self.gateway.submit, request, result, partial(ended, result))
        self.timeline.call_at(request.arrival, enter)
        return result

    def play(self, requests: Iterable[TraceRequest]) -> list[Result]:
        """All of these, to their ends."""
        results = [self.ask(request) for request in requests]
        self.timeline.run()
        return results
