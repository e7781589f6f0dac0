"""Taking the secrets out of what is shown."""

from __future__ import annotations

import re
from typing import Any

REDACTED = "***"

_SECRET = re.compile(r"(token|secrets?|passwords?|keys?|hash)$", re.IGNORECASE)
_LOGIN = re.compile(r"^([a-z]+://)[^/]*@")
"""What stands before the host in a URL; a password may."""


def redacted(tree: Any, name: str = "") -> Any:
    """A tree of settings in which every value whose name says that it is a secret is starred, and
    the logins within URLs.

    A list of sections is no secret itself: what is within them says so by its own name.
    """
    sections = isinstance(tree, (list, tuple)) and all(isinstance(each, dict) for each in tree)
    if tree is not None and not sections and _SECRET.search(name):
        return REDACTED
    if isinstance(tree, str):
        return _LOGIN.sub(rf"\1{REDACTED}@", tree)
    if isinstance(tree, dict):
        return {key: redacted(value, str(key)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [redacted(value) for value in tree]
    return tree
