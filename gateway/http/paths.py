"""Paths that are not passed on, whichever way they are spelt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from gateway.config import ConfigError

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ENTRY = re.compile(rf"(?:(?P<method>{'|'.join(METHODS)}) +)?(?P<path>/\S*)")
_UNQUOTED = 8
"""How often a path is decoded at most: each hop on the way may do it once more."""


class DeniedPaths:
    """Args:
    entries: paths with * for anything, and a method before those that are for one only.

    Raises:
        ConfigError: an entry is not of that form.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        patterns: list[str] = []
        for entry in entries:
            match = _ENTRY.fullmatch(entry)
            if match is None:
                raise ConfigError(
                    f"server.deny_paths: {entry!r}: expected a path that begins with /, alone or"
                    f" after one of {', '.join(METHODS)}",
                    field="server.deny_paths",
                )
            path = ".*".join(map(re.escape, normalised(match["path"]).split("*")))
            patterns.append(f"{match['method'] or '[^ ]*'} {path}")
        self._denied = re.compile("|".join(patterns), re.DOTALL) if patterns else None

    def __contains__(self, request: tuple[str, str]) -> bool:
        """Args:
        request: method and path.
        """
        if self._denied is None:
            return False
        method, path = request
        return self._denied.fullmatch(f"{method} {normalised(path)}") is not None


def normalised(path: str) -> str:
    """A path as the most lenient of servers would read it: decoded, in lower case, without
    parameters, empty segments and dots."""
    for _ in range(_UNQUOTED):
        decoded = unquote(path, errors="replace")
        if decoded == path:
            break
        path = decoded
    parts: list[str] = []
    for segment in re.split(r"[/\\]", path.partition("?")[0].partition("#")[0].lower()):
        name = segment.partition(";")[0].strip()
        if name == "..":
            del parts[-1:]
        elif name not in ("", "."):
            parts.append(name)
    return "/" + "/".join(parts)
