"""Voiding all that is known of one model's prefixes, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

MAX_MODELS = 4096
"""Models whose generations other replicas may raise."""


class Generations:
    """A model's generation is part of its namespace, so that raising it voids every older chain.

    For an adapter that was reloaded under its old name: its weights are others, and so is its KV
    cache. What the index still holds of older generations is never matched again and ages out.

    Attributes:
        raised: told of each generation that begins here, by model and number, for other replicas
            to know; None where there are none.
    """

    def __init__(self) -> None:
        self.raised: Callable[[str, int], None] | None = None
        self._marks: dict[str, bytes] = {}

    def raise_for(self, model: str) -> None:
        """Begin a new generation of `model`."""
        number = self.number(model) + 1
        self._marks[model] = b"\xff%d" % number
        if self.raised is not None:
            self.raised(model, number)

    def raise_to(self, model: str, number: int) -> bool:
        """Follow another replica, unless this one is as far already; says whether it was not."""
        if number <= self.number(model):
            return False
        if model not in self._marks and len(self._marks) >= MAX_MODELS:
            return False
        self._marks[model] = b"\xff%d" % number
        return True

    def number(self, model: str) -> int:
        """The generation of `model`, counted from 0."""
        return int(self._marks.get(model, b"\xff0")[1:])

    def numbers(self) -> Mapping[str, int]:
        """Generations by model, without the first ones."""
        return {model: self.number(model) for model in self._marks}

    def namespace(self, model: str, namespace: bytes) -> bytes:
        """`namespace`, told apart by the model's generation; the same bytes in the first one."""
        mark = self._marks.get(model)
        return namespace if mark is None else namespace + mark
