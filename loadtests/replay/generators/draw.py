"""Random quantities as they are found in traffic."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import accumulate


def around(dice: random.Random, median: float, sigma: float, most: int) -> int:
    """A whole number from 1 to `most`, lognormal: two thirds of them are within a factor of
    exp(sigma) of the median."""
    return max(1, min(most, round(dice.lognormvariate(math.log(median), sigma))))


def tries(dice: random.Random, mean: float) -> int:
    """How often something is done that each time is the last with probability 1/mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - dice.random()) / math.log(1 - 1 / mean))


def poisson(dice: random.Random, rate: float, begin: float, end: float) -> Iterator[float]:
    """Times of a Poisson process."""
    time = begin + dice.expovariate(rate)
    while time < end:
        yield time
        time += dice.expovariate(rate)


class Zipf:
    """Draws the k-th of some things with a probability proportional to 1/k**exponent."""

    def __init__(self, things: int, exponent: float) -> None:
        self._things = range(things)
        self._cumulated = list(accumulate(1 / (k + 1) ** exponent for k in self._things))

    def draw(self, dice: random.Random) -> int:
        [thing] = dice.choices(self._things, cum_weights=self._cumulated)
        return thing
