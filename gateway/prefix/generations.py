"""Voiding all that is known of one model's prefixes, at once."""

from __future__ import annotations


class Generations:
    """A model's generation is part of its namespace, so that raising it voids every older chain.

    For an adapter that was reloaded under its old name: its weights are others, and so is its KV
    cache. What the index still holds of older generations is never matched again and ages out.
    """

    def __init__(self) -> None:
        self._marks: dict[str, bytes] = {}

    def raise_for(self, model: str) -> None:
        """Begin a new generation of `model`."""
        number = int(self._marks.get(model, b"\xff0")[1:]) + 1
        self._marks[model] = b"\xff%d" % number

    def namespace(self, model: str, namespace: bytes) -> bytes:
        """`namespace`, told apart by the model's generation; the same bytes in the first one."""
        mark = self._marks.get(model)
        return namespace if mark is None else namespace + mark
