"""Which code a result is of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gateway.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
DECISIVE = (
    "gateway/config",
    "gateway/types.py",
    "gateway/estimates",
    "gateway/prefix",
    "gateway/scheduling",
    "policies",
    "loadtests/replay",
    "loadtests/rivals",
    "loadtests/sim",
)
"""What a replay's figures depend on."""
LEFT_OUT = {"cli.py", "command.py", "report.py", "server.py"}
"""In it, what only talks to people or the network."""


@dataclass(slots=True, frozen=True)
class Version:
    """
    Attributes:
        number: the release.
        code: equal for trees that give the same figures.
    """

    number: str
    code: str


def current(root: Path = ROOT) -> Version:
    """Of the tree that this runs from."""
    digest = hashlib.sha256()
    for part in DECISIVE:
        path = root / part
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".yaml") and file.name not in LEFT_OUT:
                digest.update(f"{file.relative_to(root)}\0".encode())
                digest.update(file.read_bytes())
    return Version(VERSION, digest.hexdigest()[:12])
