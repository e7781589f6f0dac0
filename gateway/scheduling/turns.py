"""Whose turn it is when several kinds of tickets wait for the same thing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")

_MAX_CREDIT = 2.0
_ROUNDING = 1e-9
"""Shares such as 0.1 do not add up to exactly 1."""


class Turns(Generic[K]):
    """The first kind goes first, but of the releases while others wait too, each of the others
    gets at least its share.

    Every release earns each kind that waits its share as credit; a whole credit is one turn ahead
    of the rest. What it could not use, because it had no ticket that fits, is kept, up to two
    turns.

    Bound: of n releases while a kind waits whose share is s it gets at least s * n - k, where k is
    how many kinds come after the first, as long as their shares add up to at most 1.

    Args:
        kinds: in their order.
    """

    __slots__ = ("_credit", "_kinds")

    def __init__(self, kinds: Collection[K]) -> None:
        self._kinds = tuple(kinds)
        self._credit: dict[K, float] = dict.fromkeys(self._kinds, 0.0)

    def first(self, waiting: Collection[K], shares: Mapping[K, float]) -> K:
        """Of those that wait, whose turn it is; there must be one."""
        plain = [kind for kind in self._kinds if kind in waiting]
        due, most = plain[0], 1.0 - _ROUNDING
        for kind in plain[1:]:
            credit = self._credit[kind] + shares.get(kind, 0.0)
            if credit >= most:
                due, most = kind, credit
        return due

    def released(self, kind: K, waiting: Collection[K], shares: Mapping[K, float]) -> None:
        """Count a release.

        Args:
            waiting: the kinds that waited, `kind` among them.
        """
        if len(waiting) < 2:
            return
        credit = self._credit
        for other in waiting:
            credit[other] = min(credit[other] + shares.get(other, 0.0), _MAX_CREDIT)
        credit[kind] = max(0.0, credit[kind] - 1.0)
