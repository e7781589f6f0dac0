"""docker-compose.yml, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ENGINES = tuple(name for name in SERVICES if name.startswith("engine-"))


def mounts(name: str) -> dict[str, Path]:
    """Files and folders of the repository by where a service sees them."""
    volumes = [volume.split(":") for volume in SERVICES[name].get("volumes", ())]
    return {target: ROOT / source for source, target, *_ in volumes if source.startswith("./")}
