"""Whose turn it is when both classes wait."""

from __future__ import annotations

_MAX_CREDIT = 2.0
_ROUNDING = 1e-9
"""Shares such as 0.1 do not add up to exactly 1."""


class PrefillShare:
    """Decode goes first, but of the releases while both wait, prefill gets at least its share.

    Every such release earns prefill the share as credit; a whole credit is one turn ahead. What it
    could not use, because its head fitted nowhere, is kept, up to two turns.
    """

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit = 0.0

    def is_due(self, share: float) -> bool:
        """Whether prefill goes ahead now."""
        return self._credit + share >= 1.0 - _ROUNDING

    def released(self, share: float, *, prefill: bool) -> None:
        """Count a release that was made while both waited."""
        credit = min(self._credit + share, _MAX_CREDIT)
        self._credit = max(0.0, credit - 1.0) if prefill else credit
