"""How many requests may be tried again."""

from __future__ import annotations


class RetryBudget:
    """Lets retries be a share of the traffic, so that a failing fleet is not hit twice as hard.

    What is not used is kept for the moment in which a backend goes, up to `MOST`: at 200 requests a
    second over four backends with 2 s to the first byte, one that is killed leaves 100 requests to
    be sent elsewhere, which a share of 0.2 has earned after 2 s of traffic, with the `FIRST`.

    Args:
        share: retries per request, in the long run; may be changed.
    """

    FIRST = 20.0
    """Retries that may come before there was any traffic."""
    MOST = 500.0
    """Retries that may come at once."""

    __slots__ = ("_left", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._left = self.FIRST

    def earn(self) -> None:
        """A request has come in."""
        if self._left < self.MOST:
            self._left = min(self.MOST, self._left + self.share)

    def spend(self) -> bool:
        """Whether one more retry is within the budget; it is then taken from it."""
        if self._left < 1.0 or not self.share:
            return False
        self._left -= 1.0
        return True
