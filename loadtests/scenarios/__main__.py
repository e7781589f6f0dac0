"""`python -m loadtests.scenarios NAME...`: situations that a gateway must get right, as tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from loadtests.scenarios import (
    cached_document,
    crowd,
    flood,
    hot_prefix,
    overload,
    priorities,
    unequal,
)
from loadtests.scenarios.table import Figures, table

SCENARIOS: Mapping[str, tuple[str, Callable[[], Mapping[str, Figures]]]] = {
    "hot_prefix": (hot_prefix.TITLE, hot_prefix.run),
    "crowd": (crowd.TITLE, crowd.run),
    "cached_document": (cached_document.TITLE, cached_document.run),
    "unequal": (unequal.TITLE, unequal.run),
    "flood": (flood.TITLE, flood.run),
    "overload": (overload.TITLE, overload.run),
    "priorities": (priorities.TITLE, priorities.run),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.scenarios",
        description="Play situations in virtual time. The same figures every time.",
    )
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help=f"all of {', '.join(SCENARIOS)} by default"
    )
    names = parser.parse_args().name or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    for name in names:
        title, run = SCENARIOS[name]
        print(table(title, run()), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
