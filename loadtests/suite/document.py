"""Parts of a Markdown page that a program writes."""

from __future__ import annotations

from pathlib import Path

from gateway.config import ConfigError


def put(path: Path, part: str, text: str) -> None:
    """Replace what stands in a page between the markers of `part`.

    Raises:
        ConfigError: the page has no such markers.
    """
    begin, end = f"<!-- begin {part} -->", f"<!-- end {part} -->"
    page = path.read_text(encoding="utf-8")
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ConfigError(f"{path} has no lines {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")
