"""Prompt tokens from key bytes, by a ratio learnt from what engines report."""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum

NOMINAL_BYTES = 4.0
"""Key bytes per token before anything is learnt; exact for prompts of token ids, which are keyed
with four bytes each. The prefix index counts in these nominal tokens."""
MIN_BYTES, MAX_BYTES = 0.5, 16.0
"""Bounds of a plausible ratio. Below: a picture that the key counts with a fraction of its tokens.
Above: a tokenizer that knows long runs of blanks."""

_SAMPLE_PIECES = 4
_PIECE_BYTES = 96
_SAMPLE_BYTES = _SAMPLE_PIECES * _PIECE_BYTES

_PRIOR_TOKENS = 2_000.0
"""How many reported tokens weigh as much as the next coarser estimate."""
_MEMORY_TOKENS = 200_000.0
_MAX_SAMPLE_TOKENS = 4_000.0
"""One prompt counts for at most this much, so that no single one moves an estimate by far."""
_MAX_MODELS = 1_024

_ASCII = bytes(range(0x80))
_LETTERS = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))
_BLANKS = b" \n\t\r"
_UP_TO_TWO_BYTE_LEADS = bytes(range(0xE0))


class Content(IntEnum):
    """What a prompt is made of, as far as it shows in how many bytes make a token."""

    IDS = 0
    """Token ids: nothing to estimate."""
    PROSE = 1
    """Mostly ASCII letters and blanks."""
    MARKUP = 2
    """Code, JSON, tables: many other ASCII characters."""
    DENSE = 3
    """ASCII almost without blanks: base64, digests, minified text."""
    TWO_BYTE = 4
    """Mostly letters of two bytes in UTF-8: Cyrillic, Greek, Arabic, Hebrew."""
    WIDE = 5
    """Mostly characters of three bytes or more: Chinese, Japanese, Korean, Thai, Indic."""
    MIXED = 6
    """ASCII with a good share of anything else."""


def content_of(key: bytes, *, is_ids: bool = False) -> Content:
    """The class of a prompt key, judged by a few short pieces spread over it."""
    if is_ids:
        return Content.IDS
    size = len(key)
    if size <= _SAMPLE_BYTES:
        sample = key
    else:
        step = (size - _PIECE_BYTES) // (_SAMPLE_PIECES - 1)
        sample = (
            key[:_PIECE_BYTES]
            + key[step : step + _PIECE_BYTES]
            + key[2 * step : 2 * step + _PIECE_BYTES]
            + key[-_PIECE_BYTES:]
        )
    size = len(sample)
    foreign = b"" if sample.isascii() else sample.translate(None, _ASCII)
    if 20 * len(foreign) > size:
        if 2 * len(foreign) < size:
            return Content.MIXED
        # Of a text in characters of three bytes a third are leads, of one in two bytes none.
        wide = len(foreign.translate(None, _UP_TO_TWO_BYTE_LEADS))
        return Content.WIDE if 6 * wide > len(foreign) else Content.TWO_BYTE
    others = sample.translate(None, _LETTERS)
    blanks = len(others) - len(others.translate(None, _BLANKS))
    if 25 * blanks < size:
        return Content.DENSE
    return Content.PROSE if 10 * (len(others) - blanks) < size else Content.MARKUP


class Ratio:
    """Bytes and tokens of many prompts, the older ones fading."""

    __slots__ = ("bytes", "tokens")

    def __init__(self) -> None:
        self.bytes = 0.0
        self.tokens = 0.0

    def add(self, size: float, tokens: float) -> None:
        self.bytes += size
        self.tokens += tokens
        if self.tokens > _MEMORY_TOKENS:
            self.bytes *= _MEMORY_TOKENS / self.tokens
            self.tokens = _MEMORY_TOKENS

    def shrunk_to(self, prior: float) -> float:
        return (self.bytes + _PRIOR_TOKENS * prior) / (self.tokens + _PRIOR_TOKENS)


class _Model:
    """What is known of one model's tokenizer: altogether, and by content where that was seen."""

    __slots__ = ("contents", "whole")

    def __init__(self) -> None:
        self.whole = Ratio()
        self.contents: dict[Content, Ratio] = {}

    def bytes_per_token(self, content: Content | None) -> float:
        prior = self.whole.shrunk_to(NOMINAL_BYTES)
        seen = None if content is None else self.contents.get(content)
        return prior if seen is None else seen.shrunk_to(prior)


class TokenEstimate:
    """Bytes per token by model and content. What was seen little leans on what is coarser: a
    model's content on the model, a model on `NOMINAL_BYTES`.

    Ratios are of sums, so that short prompts, of which the template makes up most, count little.
    """

    def __init__(self) -> None:
        self._models: OrderedDict[str, _Model] = OrderedDict()

    def bytes_per_token(self, model: str, content: Content | None = None) -> float:
        """The ratio in use; over all that was sent to the model when no content is named."""
        if content is Content.IDS:
            return NOMINAL_BYTES
        known = self._models.get(model)
        return NOMINAL_BYTES if known is None else known.bytes_per_token(content)

    def estimate(self, model: str, content: Content, prompt_bytes: int) -> int:
        """Engine tokens of a prompt; at least 1 for one that is not empty."""
        if not prompt_bytes:
            return 0
        return max(1, round(prompt_bytes / self.bytes_per_token(model, content)))

    def learn(self, model: str, content: Content, prompt_bytes: int, reported_tokens: int) -> None:
        """Take in what an engine counted. Counts of none, and of token ids, teach nothing."""
        if content is Content.IDS or prompt_bytes < 1 or reported_tokens < 1:
            return
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Model()
            if len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        ratio = min(max(prompt_bytes / reported_tokens, MIN_BYTES), MAX_BYTES)
        tokens = min(float(reported_tokens), _MAX_SAMPLE_TOKENS)
        known.whole.add(ratio * tokens, tokens)
        seen = known.contents.get(content)
        if seen is None:
            seen = known.contents[content] = Ratio()
        seen.add(ratio * tokens, tokens)
