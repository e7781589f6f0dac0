"""How many times as long something takes as it should: observed over expected seconds."""

from __future__ import annotations

from math import exp

LONG_SECONDS = 60.0
SHORT_SECONDS = 8.0
"""Work, in observed seconds, over which the two memories fade by a factor of e."""
JUMP = 1.25
"""The short memory takes over when it differs from the long one by this factor."""
MAX_SURPRISE = 4.0
"""A sample further off than this factor counts only as far: it is no measure of speed then, but of
a cache that held more or less than was thought, or of a request held up by something else."""

_JUMP_SECONDS = 3.0
_JUMP_SAMPLES = 3.0
_JUMP_KEEPS = 0.2


class Sums:
    """Observed and expected seconds, fading with the work that they measure."""

    __slots__ = ("expected", "memory", "observed", "samples")

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.observed = 0.0
        self.expected = 0.0
        self.samples = 0.0

    def add(self, observed: float, expected: float) -> None:
        self.fade(exp(-observed / self.memory))
        self.observed += observed
        self.expected += expected
        self.samples += 1.0

    def fade(self, keep: float) -> None:
        self.observed *= keep
        self.expected *= keep
        self.samples *= keep


class Factor:
    """A ratio of sums, never a mean of ratios: of several prompts that end in one step, one looks
    slow and the rest instant, and only their sums mean something.

    The estimate is that of a long memory, steady under noise, until a short one contradicts it:
    then the engine has changed, and what was learnt before is dropped.
    """

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._long = Sums(LONG_SECONDS)
        self._short = Sums(SHORT_SECONDS)

    @property
    def seconds(self) -> float:
        """Expected seconds that it rests on."""
        return self._long.expected

    def add(self, observed: float, expected: float, believed: float) -> bool:
        """Take in a sample.

        Args:
            believed: the factor in use.

        Returns:
            Whether the engine seems to have changed.
        """
        if expected <= 0.0 or observed < 0.0:
            return False
        observed = min(observed, MAX_SURPRISE * believed * expected)
        expected = min(expected, MAX_SURPRISE * observed / believed)
        self._long.add(observed, expected)
        self._short.add(observed, expected)
        return self._jumped()

    def fade(self, keep: float) -> None:
        self._long.fade(keep)
        self._short.fade(keep)

    def shrunk_to(self, prior: float, weight: float) -> float:
        """The factor, with `prior` counting like `weight` expected seconds."""
        return (self._long.observed + weight * prior) / (self._long.expected + weight)

    def _jumped(self) -> bool:
        long, short = self._long, self._short
        if short.observed < _JUMP_SECONDS or short.samples < _JUMP_SAMPLES:
            return False
        before, now = long.observed * short.expected, short.observed * long.expected
        if before <= JUMP * now and now <= JUMP * before:
            return False
        # Some of the short memory is from before the change too: let what follows outweigh it.
        short.fade(_JUMP_KEEPS)
        long.observed, long.expected, long.samples = short.observed, short.expected, short.samples
        return True
