"""Taking the secrets out of what is shown."""

from __future__ import annotations

import re
from typing import Any

REDACTED = "***"

_SECRET = re.compile(r"(token|secrets?|passwords?|keys?)$", re.IGNORECASE)


def redacted(tree: Any, name: str = "") -> Any:
    """A tree of settings in which every value whose name says that it is a secret is starred."""
    if tree is not None and _SECRET.search(name):
        return REDACTED
    if isinstance(tree, dict):
        return {key: redacted(value, str(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [redacted(value) for value in tree]
    return tree
