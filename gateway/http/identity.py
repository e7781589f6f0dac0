"""Who sends a request, where API keys say so: made once, when its head has come.

Without API keys a request is whose its headers say; `FactReader` has it then.
"""

from __future__ import annotations

import msgspec

from gateway.http.headers import MAX_TENANT, RequestHeaders
from gateway.http.keys import Key
from gateway.http.quotas import Reservation
from gateway.types import Priority

_ORDER = (Priority.LOW, Priority.NORMAL, Priority.HIGH)


class Identity(msgspec.Struct):
    """Attributes:
    key: the API key that the request shows.
    tenant: whom it counts for.
    max_priority: the highest priority it can have.
    reservation: what it holds of the key's limits; None before it holds anything.
    """

    key: Key
    tenant: str
    max_priority: Priority
    reservation: Reservation | None = None

    @classmethod
    def of(cls, key: Key, headers: RequestHeaders, *, trusted: bool) -> Identity:
        """Args:
        trusted: the peer is believed on whom the request is for, and how urgent it is.
        """
        named = headers.tenant if trusted or key.names_tenants else b""
        return cls(
            key,
            named[:MAX_TENANT].decode("latin-1") if named else key.tenant,
            Priority.HIGH if trusted else key.max_priority,
        )

    def capped(self, priority: Priority) -> Priority:
        """A priority, or the highest that the request can have."""
        return min(priority, self.max_priority, key=_ORDER.index)

    def exceeds(self, priority: Priority) -> bool:
        """Whether the request must not have a priority."""
        return self.capped(priority) is not priority
