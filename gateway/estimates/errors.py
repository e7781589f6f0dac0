"""How far estimates are off: numbers that metrics can be made of."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Estimate(StrEnum):
    """What is predicted; also a metric label, so the set is closed."""

    PROMPT_TOKENS = "prompt_tokens"
    CACHED_TOKENS = "cached_tokens"
    OUTPUT_TOKENS = "output_tokens"
    FIRST_TOKEN = "first_token"
    """Seconds from dispatch to the first token."""


class ErrorTotals(msgspec.Struct, frozen=True):
    """Sums since the start; all of them only ever grow, but for `signed`.

    The relative error of one prediction is (predicted - actual) / max(actual, floor).

    Attributes:
        count: predictions that were put to the test.
        predicted, actual: their sums, in the estimate's own unit.
        signed: sum of the relative errors. Over `count`: the bias, above 0 when too much is
            expected.
        absolute: sum of their sizes. Over `count`: the mean relative error.
    """

    count: int = 0
    predicted: float = 0.0
    actual: float = 0.0
    signed: float = 0.0
    absolute: float = 0.0


_FLOORS = {
    Estimate.PROMPT_TOKENS: 16.0,
    Estimate.CACHED_TOKENS: 64.0,
    Estimate.OUTPUT_TOKENS: 8.0,
    Estimate.FIRST_TOKEN: 0.05,
}
"""What an actual value counts for at least: nobody minds a prediction of 2 ms that took 4."""


class Errors:
    """The errors of every estimate, added up."""

    def __init__(self) -> None:
        self._totals = {each: [0.0, 0.0, 0.0, 0.0, 0.0, _FLOORS[each]] for each in Estimate}

    def note(self, estimate: Estimate, predicted: float, actual: float) -> None:
        """A prediction and what came of it."""
        totals = self._totals[estimate]
        floor = totals[5]
        error = (predicted - actual) / (actual if actual > floor else floor)
        totals[0] += 1
        totals[1] += predicted
        totals[2] += actual
        totals[3] += error
        totals[4] += error if error > 0.0 else -error

    def snapshot(self) -> dict[Estimate, ErrorTotals]:
        """The sums at this moment, of every estimate."""
        return {each: ErrorTotals(int(sums[0]), *sums[1:5]) for each, sums in self._totals.items()}
