"""Which backend keeps which stored response: engines know only those they made themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from gateway.config import Stored
from gateway.types import Clock

MAX_ID = 256
"""Characters of an id that is remembered; engines' own have about 40."""
_PREFIX = "/v1/responses/"


class Owner(NamedTuple):
    """Attributes:
    backend: id of the one that keeps a response.
    tenant: whom it was made for; "" where API keys do not tell tenants apart.
    """

    backend: str
    tenant: str = ""


class Owners(Protocol):
    """Looked up before a request that names a stored response is sent."""

    def note(self, id: str, owner: Owner) -> None:
        """A backend has said that it keeps a response under this id."""

    def find(self, id: str) -> Owner | None:
        """Who keeps a response; None when that is not known."""

    def seek(self, id: str) -> Awaitable[None] | None:
        """What to wait for before `find`, a bounded time; None where there is nothing."""


class LocalOwners:
    """Owners of the responses that this process has seen made, the latest `max_ids` of them.

    Attributes:
        settings: may be assigned anew at any time.
    """

    def __init__(self, settings: Stored, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._owners: OrderedDict[str, tuple[Owner, float]] = OrderedDict()
        """By response id: its owner and when it was noted; the oldest first."""

    def __len__(self) -> int:
        return len(self._owners)

    def note(self, id: str, owner: Owner) -> None:
        owners = self._owners
        now = self._clock()
        owners[id] = (owner, now)
        owners.move_to_end(id)
        settings = self.settings
        while len(owners) > settings.max_ids:
            owners.popitem(last=False)
        # Two for each one that comes: the overdue do not stay until the bound is reached.
        for _ in range(2):
            oldest = next(iter(owners))
            if owners[oldest][1] + settings.ttl > now:
                return
            if oldest != id:
                del owners[oldest]

    def find(self, id: str) -> Owner | None:
        known = self._owners.get(id)
        if known is None:
            return None
        owner, noted = known
        if noted + self.settings.ttl <= self._clock():
            del self._owners[id]
            return None
        return owner

    def seek(self, id: str) -> None:
        """Nobody else knows."""


def named_in(path: str) -> str:
    """The response that a path is about: /v1/responses/ID, /v1/responses/ID/cancel and so on; ""
    when it is about none."""
    if not path.startswith(_PREFIX):
        return ""
    return unquote(path[len(_PREFIX) :].partition("/")[0])
