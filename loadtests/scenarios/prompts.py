"""Prompts that share what they are told to, and nothing else."""

from __future__ import annotations

from itertools import count

from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.trace import TraceRequest


class Prompts:
    def __init__(self) -> None:
        self._fresh = count()

    def prefix(self, tokens: int) -> Prompt:
        """A beginning for several prompts."""
        return self.own(Prompt(), tokens)

    def own(self, prefix: Prompt, tokens: int) -> Prompt:
        """A prompt that goes on with so many tokens of its own."""
        return prefix.then(tokens, self._fresh)


def ask(arrival: float, prompt: Prompt, output_tokens: int, tenant: str = "") -> TraceRequest:
    """A request for a prompt."""
    return TraceRequest(arrival, prompt.tokens, output_tokens, prompt.blocks, tenant=tenant)
