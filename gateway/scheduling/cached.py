"""What one backend holds of a request's prompt."""

from __future__ import annotations

from gateway.types import HASH_BYTES
from policies.base import RouteRequest


def uncached_tokens(request: RouteRequest, backend_id: str) -> int:
    """Prompt tokens that one backend would have to prefill, in whole tokens."""
    matched = request.match.tokens.get(backend_id)
    if matched is None:
        return request.prompt_tokens
    return max(0, request.prompt_tokens - int(matched))


def anchor(request: RouteRequest, backend_id: str) -> bytes:
    """The last block of what one backend holds of a prompt: equal for all that share it there.
    b"" when it holds none."""
    end = request.match.blocks.get(backend_id, 0) * HASH_BYTES
    return request.chain[end - HASH_BYTES : end] if end else b""
