"""Names for what must not be shown itself: API keys, tenants, sessions."""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 8


def digest(text: str) -> str | None:
    """The same short name for the same text, on every machine; None for an empty one."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest() if text else None
