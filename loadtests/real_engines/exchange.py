"""One question and its answer, as the client saw it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Exchange:
    """
    Attributes:
        turn: its place in the conversation, from 0.
        backend: id of the backend that answered, and `reason` why it was chosen.
        matched: tokens that the gateway expected to be cached there.
        cached: tokens that the engine found cached.
        prompt: ids of the prompt's tokens, as the engine made them.
        answer: ids of the answer's tokens.
        key_bytes: length of the prompt's key, by which the gateway knows it.
    """

    conversation: str
    turn: int
    backend: str
    reason: str
    matched: int
    cached: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    key_bytes: int
