"""A YAML file as plain data that remembers on which line each value stands.

Stricter than YAML libraries: a key that is there twice is refused, because one of the two would be
dropped without a word. Anchors, aliases and merge keys are understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

MAX_NODES = 100_000
"""Values in a file, with what aliases stand for counted each time."""


LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is there: a hundred times as fast, which counts while requests are served."""


class Unreadable(ValueError):
    """The text is not a document.

    Attributes:
        line: where, counted from 1; None when that cannot be told.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """Attributes:
    data: mappings, lists and scalars; None when the text has only comments in it.
    lines: by dotted place, as in "backends[0].url", the line of a value's key, counted from 1.
    """

    data: Any
    lines: dict[str, int]

    def line(self, place: str) -> int | None:
        """The line of a place, or of the nearest one around it; None when there is none."""
        while place and place not in self.lines:
            place = place[: max(place.rfind("."), place.rfind("["), 0)]
        return self.lines.get(place)


def read(text: str) -> Document:
    """Raises:
    Unreadable: it is empty or no YAML, has a key twice, or grows without end.
    """
    if not text.strip():
        raise Unreadable("is empty")
    try:
        return _read(LOADER(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"not valid YAML: {error.problem or error.context}"
        raise Unreadable(problem, None if mark is None else mark.line + 1) from None
    except RecursionError:
        raise Unreadable("is nested too deeply") from None
    except Unreadable:
        raise
    except (yaml.YAMLError, ValueError) as error:
        # Characters that YAML does not allow, dates that do not exist.
        raise Unreadable(f"not valid YAML: {' '.join(str(error).split())}") from None


def _read(loader: yaml.SafeLoader) -> Document:
    root = loader.get_single_node()
    if root is None:
        return Document(None, {})
    if _size(root, {}) > MAX_NODES:
        raise Unreadable(f"its aliases stand for more than {MAX_NODES} values")
    lines: dict[str, int] = {}
    _note(root, "", lines, set())
    return Document(loader.construct_document(root), lines)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for; an alias inside its own anchor stands for too many."""
    size = known.get(id(node))
    if size is None:
        known[id(node)] = MAX_NODES + 1  # as long as it is being counted
        size = 1 + sum(_size(child, known) for child in _children(node))
        known[id(node)] = size
    return size


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _note(node: yaml.Node, place: str, lines: dict[str, int], seen: set[int]) -> None:
    """Write down the lines of all that is below a node, once for each anchor.

    Raises:
        Unreadable: a mapping has a key twice.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            inside = f"{place}[{index}]"
            lines[inside] = child.start_mark.line + 1
            _note(child, inside, lines, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            inside = place
            if isinstance(key, yaml.ScalarNode):
                inside = f"{place}.{key.value}".lstrip(".")
                if key.value in first:
                    raise Unreadable(
                        f"{inside}: is there twice, first on line {first[key.value]}", line
                    )
                first[key.value] = line
                lines[inside] = line
            _note(child, inside, lines, seen)
