"""Exchanges made by hand."""

from loadtests.real_engines.exchange import Exchange


def exchange(
    turn: int,
    prompt: range | list[int],
    answer: list[int],
    *,
    conversation: str = "chat-0",
    backend: str = "a",
    reason: str = "prefix",
    matched: int = 0,
    cached: int = 0,
) -> Exchange:
    """Its key has two bytes a token."""
    return Exchange(
        conversation,
        turn,
        backend,
        reason,
        matched,
        cached,
        tuple(prompt),
        tuple(answer),
        key_bytes=2 * len(prompt),
    )
