"""When a prefix is worth one more copy."""

from __future__ import annotations

from collections import OrderedDict
from math import exp

TRACKED = 4096
"""Prefixes that are kept account of."""
_FADE = 60.0
"""Seconds in which what was paid fades by a factor of e."""


class Copies:
    """An account, for each prefix, of the seconds that requests have lost where it is cached, in
    queues and beside other streams, against where they would have lost least.

    No single request gains by computing anew what is cached a short wait away, so a hot prefix
    would stay on as few backends as can just bear it. But the seconds add up. Once they come to
    what a copy costs it is made: as with skis that are rented until the rent comes to their price,
    at most twice the least possible is paid, whatever the future brings.
    """

    __slots__ = ("_accounts",)

    def __init__(self) -> None:
        self._accounts: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def paid(self, prefix: bytes, now: float) -> float:
        """Seconds lost for a prefix since its last copy."""
        account = self._accounts.get(prefix)
        if account is None:
            return 0.0
        seconds, at = account
        return seconds * exp((at - now) / _FADE) if now > at else seconds

    def wait(self, prefix: bytes, now: float, seconds: float) -> None:
        """A request goes where the prefix is."""
        self._accounts[prefix] = (self.paid(prefix, now) + seconds, now)
        self._accounts.move_to_end(prefix)
        if len(self._accounts) > TRACKED:
            self._accounts.popitem(last=False)

    def copied(self, prefix: bytes) -> None:
        """One more backend gets it."""
        self._accounts.pop(prefix, None)
