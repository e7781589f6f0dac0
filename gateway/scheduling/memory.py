"""What the prompts in flight at one backend take up of its KV cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Prefix:
    """A cached part of prompts: its tokens as they were counted for the first that has it, and how
    many have it."""

    tokens: int
    requests: int = 0


class Memory:
    """What several in flight share counts once. What is cached and not in use counts for nothing:
    it makes place.

    Attributes:
        tokens: in use.
    """

    __slots__ = ("_prefixes", "_prompts", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self._prompts: dict[object, tuple[int, bytes]] = {}
        self._prefixes: dict[bytes, _Prefix] = {}

    def __contains__(self, anchor: bytes) -> bool:
        """Whether a cached prefix is in use."""
        return anchor in self._prefixes

    def take(self, lease: object, prompt_tokens: int, uncached_tokens: int, anchor: bytes) -> None:
        """
        Args:
            lease: what the prompt is known by, until `give_back`.
            anchor: names the cached part; b"" when nothing is cached.
        """
        own = uncached_tokens if anchor else prompt_tokens
        self._prompts[lease] = own, anchor
        self.tokens += own
        if anchor:
            prefix = self._prefixes.get(anchor)
            if prefix is None:
                prefix = self._prefixes[anchor] = _Prefix(prompt_tokens - uncached_tokens)
                self.tokens += prefix.tokens
            prefix.requests += 1

    def give_back(self, lease: object) -> None:
        own, anchor = self._prompts.pop(lease)
        self.tokens -= own
        if anchor:
            prefix = self._prefixes[anchor]
            prefix.requests -= 1
            if not prefix.requests:
                self.tokens -= prefix.tokens
                del self._prefixes[anchor]
