"""What the suite replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config import ConfigError
from loadtests.replay import source
from loadtests.replay.trace import Trace

RECORDED = ("conversation", "synthetic")
GENERATED = {
    "agents": "gen:agents?rate=12&seconds=900",
    "documents": "gen:documents?rate=5&seconds=1200",
}
"""At their nominal rate the better rivals are near the highest load that they can take, as they are
with the recorded ones."""


@dataclass(slots=True, frozen=True)
class Workload:
    """
    Attributes:
        traces: by seed, for seeds from 1 on.
    """

    name: str
    traces: Sequence[Trace]


def find(directory: Path | None, seeds: int, names: Sequence[str] = ()) -> list[Workload]:
    """The workloads: recorded ones where `directory` has them, then the generated ones.

    Args:
        directory: of the files `NAME_trace.jsonl`, packed by gzip or not; None leaves them out.
        names: only these; all when empty.

    Raises:
        ConfigError: a trace is missing or cannot be read, or a name is unknown.
    """
    sources = dict(GENERATED)
    if directory is not None:
        sources = {name: str(_file(directory, name)) for name in RECORDED} | sources
    unknown = set(names) - sources.keys()
    if unknown:
        raise ConfigError(
            f"unknown workload {', '.join(sorted(unknown))}; there are {', '.join(sources)}"
            + ("" if directory else " (others need the directory of the traces)")
        )
    return [
        Workload(name, list(_seeded(text, seeds)))
        for name, text in sources.items()
        if not names or name in names
    ]


def _seeded(text: str, seeds: int) -> Iterator[Trace]:
    of = source.find(text)
    for seed in range(1, seeds + 1):
        yield of(seed)


def _file(directory: Path, name: str) -> Path:
    for ending in ("jsonl", "jsonl.gz"):
        path = directory / f"{name}_trace.{ending}"
        if path.is_file():
            return path
    raise ConfigError(f"{directory} has no {name}_trace.jsonl and no {name}_trace.jsonl.gz")
