"""The state that replicas share through Redis."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.config.base import Section

Namespace = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Redis(Section, frozen=True):
    url: str | None = None
    """redis://, rediss:// or unix://, with a database and a user if there are any. Without one
    nothing is shared."""
    namespace: Namespace = "prefixgate"
    """Replicas with the same one are one gateway. All keys begin with it."""
