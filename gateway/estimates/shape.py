"""How long an engine takes, as a shape that one factor each for prefill and decode scales."""

from __future__ import annotations

import msgspec


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        prefill_rate: uncached prompt tokens per second, at the start of a prompt.
        attention_context: tokens of context at which a prompt token takes twice as long.
        chunk_tokens: prompt tokens that a step takes at most.
        step_seconds: one decode step, before its streams.
        stream_seconds: what each stream adds to a step.
        context_seconds: what each token of context, of any stream, adds to a step.

    The defaults are those of an 8B model in 16 bits on an A100.
    """

    prefill_rate: float = 10_000.0
    attention_context: float = 30_000.0
    chunk_tokens: int = 2048
    step_seconds: float = 8e-3
    stream_seconds: float = 3e-5
    context_seconds: float = 8e-8

    def prefill(self, prompt_tokens: float, uncached_tokens: float) -> float:
        """Seconds for the last `uncached_tokens` of a prompt, without the steps' own time."""
        before = prompt_tokens - 0.5 * uncached_tokens
        return uncached_tokens / self.prefill_rate * (1.0 + before / self.attention_context)

    def step(self, streams: int, context: float) -> float:
        """Seconds of a step in which `streams` decode over `context` tokens, together."""
        return self.step_seconds + self.stream_seconds * streams + self.context_seconds * context

    def slower(self, prefill: float, decode: float) -> EngineShape:
        """The shape of an engine that takes `prefill` and `decode` times as long."""
        return msgspec.structs.replace(
            self,
            prefill_rate=self.prefill_rate / prefill,
            step_seconds=self.step_seconds * decode,
            stream_seconds=self.stream_seconds * decode,
            context_seconds=self.context_seconds * decode,
        )
