"""When steps end: a run of like steps is summed in closed form, so any of them costs the same."""

from __future__ import annotations

from math import ceil, sqrt

from loadtests.sim.profile import Timing


class StepRun:
    """Steps in a row in which the same sequences decode and nothing else happens.

    The first takes `first` seconds and each one `growth` more than the one before, because all
    contexts grow by a token. A step that also prefills is a run of one.
    """

    __slots__ = ("done", "first", "growth", "start")

    def __init__(self, start: float, first: float, growth: float = 0.0) -> None:
        self.start = start
        self.first = first
        self.growth = growth
        self.done = 0
        """Steps completed so far."""

    @classmethod
    def decoding(cls, timing: Timing, start: float, streams: int, context: int) -> StepRun:
        first = step_seconds(timing, streams, context)
        return cls(start, first, timing.per_context_token * streams)

    def end(self, steps: int) -> float:
        """When the first `steps` steps are done."""
        return self.start + (steps * self.first + self.growth * (steps * (steps - 1) // 2))

    def reaching(self, time: float) -> int:
        """The least number of steps, above those done, that end at `time` or later."""
        half = self.growth / 2
        linear = self.first - half
        elapsed = max(0.0, time - self.start)
        root = sqrt(linear * linear + 4 * half * elapsed)
        steps = max(self.done + 1, ceil(2 * elapsed / (linear + root)))
        while steps > self.done + 1 and self.end(steps - 1) >= time:
            steps -= 1
        while self.end(steps) < time:
            steps += 1
        return steps


def step_seconds(timing: Timing, streams: int, context: int) -> float:
    """A step without its prefill.

    Args:
        streams: sequences that decode in it.
        context: tokens they attend to, together.
    """
    return timing.base + timing.per_stream * streams + timing.per_context_token * context
