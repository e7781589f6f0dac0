"""A slice of a trace, and the text that a client sends for each of its requests."""

from __future__ import annotations

from dataclasses import replace

from gateway.config import ConfigError
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim import tokens

TEMPLATE_TOKENS = 4
"""What the simulated engine's chat template adds to one user message."""


def cut(trace: Trace, seconds: float, load: float, max_tokens: int) -> Trace:
    """The requests that come in the first `seconds` when `load` times as many come as recorded.

    As live clients send them: prompts are longer by the chat template, and everyone says how long
    an answer is wanted. Requests longer than an engine takes are left out.

    Args:
        max_tokens: prompt and output of one request, at most.

    Raises:
        ConfigError: the trace's blocks have no one size, or nothing comes so soon.
    """
    if trace.block_tokens is None:
        raise ConfigError(f"{trace.name}: its blocks grow, so no text can be made for them")
    requests = [
        replace(
            request,
            arrival=request.arrival / load,
            input_tokens=request.input_tokens + TEMPLATE_TOKENS,
            output_tokens=max(1, request.output_tokens),
            max_tokens=max(1, request.output_tokens),
            parent=None,
        )
        for request in trace.requests
        if request.arrival / load < seconds
        and request.input_tokens + request.output_tokens + TEMPLATE_TOKENS < max_tokens
    ]
    if not requests:
        raise ConfigError(f"{trace.name}: no request comes in the first {seconds:g} s")
    return replace(trace, requests=requests, window=0.0)


def prompt(request: TraceRequest, place: int, block_tokens: int) -> str:
    """Text that begins like another request's exactly as far as the two have the same blocks.

    Args:
        request: of a slice.
        place: in the slice; what follows the last whole block is this request's alone.
    """
    texts = [word for block in request.blocks for word in _block(block, block_tokens)]
    rest = request.input_tokens - TEMPLATE_TOKENS - block_tokens * len(request.blocks)
    texts += tokens.answer(f"end of prompt {place}", rest)
    return b"".join(texts).decode("ascii")


def _block(block: int, block_tokens: int) -> list[bytes]:
    return tokens.answer(f"block {block}", block_tokens)
