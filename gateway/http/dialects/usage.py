"""The token counts that engines report, whatever the API calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(slots=True, frozen=True)
class Usage:
    """Token counts of one answer; None where the engine did not say.

    Attributes:
        prompt_tokens: the whole prompt, cached or not.
        output_tokens: generated, reasoning included.
        cached_tokens: of the prompt, those read from the prefix cache.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    def updated(self, later: Usage) -> Usage:
        """These counts with what `later` says put over them. A prompt does not shrink: who counts
        it again at the end may leave out what was cached, or all of it."""
        return Usage(
            max(self.prompt_tokens or 0, later.prompt_tokens)
            if later.prompt_tokens is not None
            else self.prompt_tokens,
            self.output_tokens if later.output_tokens is None else later.output_tokens,
            self.cached_tokens if later.cached_tokens is None else later.cached_tokens,
        )


def read_usage(reported: object) -> Usage | None:
    """A `usage` object of any dialect; None when `reported` holds no count.

    OpenAI's prompt counts include cached tokens. Anthropic's `input_tokens` leave out what was read
    from the cache and what was written to it, so those are added.
    """
    if not isinstance(reported, dict):
        return None
    count = reported.get
    prompt = _count(count("prompt_tokens"))
    details = count("prompt_tokens_details")
    cached = None
    if prompt is None:
        prompt = _count(count("input_tokens"))
        details = count("input_tokens_details")
        cached = _count(count("cache_read_input_tokens"))
        if prompt is not None:
            prompt += (cached or 0) + (_count(count("cache_creation_input_tokens")) or 0)
    if isinstance(details, dict):
        cached = _count(details.get("cached_tokens"))
    output = _count(count("completion_tokens"))
    if output is None:
        output = _count(count("output_tokens"))
    if prompt is None and output is None:
        # Rerankers count only the total, and generate nothing.
        prompt = _count(count("total_tokens"))
    if prompt is None and output is None and cached is None:
        return None
    return Usage(prompt, output, cached)


class _Answer(msgspec.Struct, gc=False):
    usage: Any = None


_decode = msgspec.json.Decoder(_Answer).decode


def usage_in(body: bytes) -> Usage | None:
    """The usage in a whole JSON answer; None when there is none to read."""
    try:
        return read_usage(_decode(body).usage)
    except (ValueError, RecursionError):
        return None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
