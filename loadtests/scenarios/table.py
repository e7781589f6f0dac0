"""Figures of several arms, side by side."""

from __future__ import annotations

from collections.abc import Mapping

Figures = Mapping[str, float]
"""By name; seconds, shares or counts, as the name says."""


def table(title: str, rows: Mapping[str, Figures]) -> str:
    """
    Args:
        rows: by the arm's name; all have the same figures.
    """
    names = list(next(iter(rows.values())))
    left = max(map(len, rows)) + 2
    width = [max(len(name), 8) + 2 for name in names]
    head = "".join(f"{name:>{size}}" for name, size in zip(names, width, strict=True))
    lines = [title, " " * left + head]
    for arm, figures in rows.items():
        cells = (f"{figures[name]:>{size}.3f}" for name, size in zip(names, width, strict=True))
        lines.append(f"{arm:<{left}}{''.join(cells)}")
    return "\n".join(lines)
