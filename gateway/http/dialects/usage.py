"""The token counts that engines report, whatever the API calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
    if isinstance(count("tokens"), dict):  # Cohere tells them beside those that are billed
        count = reported["tokens"].get
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
    if b'"usage"' not in body:
        return None
    try:
        return read_usage(_decode(body).usage)
    except (ValueError, RecursionError):
        return None


class _Native(msgspec.Struct, gc=False):
    meta_info: Any = None
    timings: Any = None
    tokens_evaluated: Any = None
    tokens_predicted: Any = None
    details: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    usage: Any = None


_decode_native = msgspec.json.Decoder(_Native).decode


def native_usage(body: bytes) -> Usage | None:
    """The counts in an answer, or a stream's event, of an engine's own route: SGLang's `meta_info`,
    llama.cpp's `timings`, TGI's `details`, Ollama's `eval_count`; None when there are none."""
    try:
        found = _decode_native(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(found.meta_info, dict):
        told = found.meta_info.get
        counts = told("prompt_tokens"), told("completion_tokens"), told("cached_tokens")
    elif isinstance(found.timings, dict):
        told = found.timings.get
        computed, cached = _count(told("prompt_n")), _count(told("cache_n"))
        whole = None if computed is None else computed + (cached or 0)
        counts = whole, told("predicted_n"), cached
    elif isinstance(found.details, dict):
        told = found.details.get
        prefill = told("prefill")
        length = len(prefill) if isinstance(prefill, list) and prefill else told("input_length")
        counts = length, told("generated_tokens"), None
    elif found.tokens_predicted is not None:
        counts = found.tokens_evaluated, found.tokens_predicted, None
    elif found.eval_count is not None:
        counts = found.prompt_eval_count, found.eval_count, None
    else:
        return read_usage(found.usage)
    prompt, output, cached = map(_count, counts)
    return None if prompt is output is cached is None else Usage(prompt, output, cached)


_COUNTS = re.compile(r'"(usage|meta_info|timings|details)"\s*:\s*(?=\{)')
_read_object = json.JSONDecoder().raw_decode


def usage_at_end(end: bytes, usage: Callable[[bytes], Usage | None]) -> Usage | None:
    """The counts in the end of an answer whose beginning is not there any more; None when there are
    none to read.

    Args:
        usage: reads them of a whole answer.
    """
    text = end.decode("utf-8", "replace")
    for found in reversed(list(_COUNTS.finditer(text))):
        try:
            counts, _ = _read_object(text, found.end())
        except (ValueError, RecursionError):
            continue
        read = usage(msgspec.json.encode({found[1]: counts}))
        if read is not None:
            return read
    return None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
