"""Request bodies for the load generator: one JSON object a line, the same in every run.

A body is a chat of a system prompt, one of eight that fill half of it, and a user message that is
its own. Warm bodies share nothing with any other: they fill a gateway's prefix index.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

_SYSTEMS = 8
_OVERHEAD = 250
"""Bytes of a body that are not text, about."""


class Words:
    """Text of random words.

    Args:
        seed: the same seed gives the same text.
    """

    def __init__(self, seed: int = 7) -> None:
        self._rng = rng = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(4000)]

    def text(self, size: int) -> str:
        """Text of `size` bytes."""
        return " ".join(self._rng.choices(self._words, k=size // 3 + 1))[:size]


def write_bodies(file: Path, size: int, count: int) -> None:
    """
    Args:
        size: of one body, in bytes, about.
    """
    words = Words()
    systems = [words.text(size // 2) for _ in range(_SYSTEMS)]
    bodies = (
        _body(systems[number % _SYSTEMS], f"{number} {words.text(size // 2 - _OVERHEAD)}")
        for number in range(count)
    )
    _write(file, bodies)


def write_warm_bodies(file: Path, size: int, count: int) -> None:
    """Bodies that differ from the first byte of their prompts on."""
    text = Words(seed=8).text(size)
    half = size // 2
    _write(file, (_body(f"warm {number} {text[:half]}", text[half:]) for number in range(count)))


def _body(system: str, user: str) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return json.dumps({"model": "m", "messages": messages, "temperature": 0.7, "top_p": 0.95})


def _write(file: Path, bodies: Iterator[str]) -> None:
    with file.open("w", encoding="ascii") as out:
        out.writelines(f"{body}\n" for body in bodies)
