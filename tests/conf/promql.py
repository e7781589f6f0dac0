"""Just enough of PromQL to see which metrics and labels an expression uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""
    (?P<string> "(?:\\.|[^"\\])*" )
  | (?P<range>  \[ [^\]]* \] )
  | (?P<number> \d[\w.]* )
  | (?P<name>   [A-Za-z_:][\w:]* )
  | (?P<symbol> =~ | !~ | != | == | <= | >= | [-+*/%^<>=(){},] )
  | (?P<space>  \s+ )
    """,
    re.VERBOSE,
)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OPERATORS = {"and", "or", "unless", "offset", "bool"}


@dataclass
class Usage:
    """What an expression uses.

    Attributes:
        metrics: each mention's name, with the labels that it is filtered by.
        grouped: each aggregation's labels, with the metrics that are aggregated.
    """

    metrics: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: list[tuple[set[str], set[str]]] = field(default_factory=list)


def read(expression: str) -> Usage:
    """Raises:
    ValueError: it has something that this reader does not know.
    """
    usage = Usage()
    _read(list(_tokens(expression)), usage)
    return usage


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"not understood: {expression[at:]!r}")
        at = match.end()
        kind = str(match.lastgroup)
        if kind not in ("space", "range"):
            yield kind, match.group()


def _read(tokens: list[tuple[str, str]], usage: Usage) -> None:
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if kind != "name" or text in OPERATORS:
            at += 1
        elif text in GROUPING:
            if text != "by":
                raise ValueError(f"{text} is not understood here")
            at = _group(tokens, at, usage)
        elif following == "(" or following in GROUPING:
            at += 1  # a function or an aggregation
        elif following == "{":
            end = _closing(tokens, at + 1)
            inside = tokens[at + 2 : end]
            usage.metrics.append((text, {name for kind, name in inside if kind == "name"}))
            at = end + 1
        else:
            usage.metrics.append((text, set()))
            at += 1


def _group(tokens: list[tuple[str, str]], at: int, usage: Usage) -> int:
    """Read `by (labels) (operand)`; returns where the operand begins."""
    end = _closing(tokens, at + 1)
    if tokens[end + 1 : end + 2] != [("symbol", "(")]:
        raise ValueError("by is not understood after its operand")
    operand = Usage()
    _read(tokens[end + 1 : _closing(tokens, end + 1) + 1], operand)
    labels = {name for kind, name in tokens[at + 2 : end] if kind == "name"}
    usage.grouped.append((labels, {name for name, _ in operand.metrics}))
    return end + 1


def _closing(tokens: list[tuple[str, str]], opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        text = tokens[at][1]
        depth += (text in "({") - (text in ")}")
        if depth == 0:
            return at
    raise ValueError("a bracket is not closed")
