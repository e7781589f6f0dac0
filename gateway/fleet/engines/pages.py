"""Pages that several kinds of engines have."""

from __future__ import annotations

import msgspec

from gateway.fleet.page import Page


class _Version(msgspec.Struct):
    version: str


def has_version(page: Page | None) -> bool:
    """Whether the page is a plain version, as /version of vLLM and /api/version of Ollama."""
    return page is not None and page.read(_Version) is not None
