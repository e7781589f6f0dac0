"""When a request may be tried again on another backend: before its first byte, within a budget."""

from __future__ import annotations

from gateway.fleet.upstream import FailureKind, UpstreamFailure

REFUSING = frozenset({429, 500, 502, 503, 504})
"""Statuses by which a backend says that it did not do the work, and another one might."""

_UNSENT = frozenset({FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT})
_UNSERVED = frozenset(
    {FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT, FailureKind.RESET, FailureKind.INCOMPLETE}
)


def is_unserved(failure: UpstreamFailure, status: int, repeatable: bool) -> bool:
    """Whether a failed exchange left nothing behind that a second one would do twice.

    A first-byte timeout is not among them: the backend may be at work, and the client has waited
    long enough once.

    Args:
        status: the backend's, 0 when its head never came. After the head the work is done.
        repeatable: it is inference, which may run twice. Other routes may change an engine's
            state; those are tried again only when nothing of them was sent.
    """
    return status == 0 and failure.kind in (_UNSERVED if repeatable else _UNSENT)


class RetryBudget:
    """Lets retries be a share of the traffic, so that a failing fleet is not hit twice as hard.

    Args:
        share: retries per request, in the long run.
    """

    BURST = 10.0
    """Retries that may come at once, after quiet times."""

    __slots__ = ("_left", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = self.BURST if share else 0.0

    def earn(self) -> None:
        """A request has come in."""
        if self._left < self.BURST:
            self._left = min(self.BURST, self._left + self._share)

    def spend(self) -> bool:
        """Whether one more retry is within the budget; it is then taken from it."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
