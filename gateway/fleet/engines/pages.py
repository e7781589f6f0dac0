"""Pages that several kinds of engines have."""

from __future__ import annotations

import re

import msgspec

from gateway.fleet.page import Page

_DTYPE = re.compile(r"[A-Za-z0-9_.]{1,40}")


class _Version(msgspec.Struct):
    version: str


def has_version(page: Page | None) -> bool:
    """Whether the page is a plain version, as /version of vLLM and /api/version of Ollama."""
    return page is not None and page.read(_Version) is not None


def version(page: Page | None) -> str:
    """Of such a page, "" when it is none."""
    found = None if page is None else page.read(_Version)
    return "" if found is None else found.version


def dtype(name: object) -> str:
    """A cache's, as engines call it; "" where they go by the model's, or do not say."""
    known = isinstance(name, str) and name != "auto" and _DTYPE.fullmatch(name) is not None
    return str(name) if known else ""
