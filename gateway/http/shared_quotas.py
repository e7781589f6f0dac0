"""The limits of API keys over all replicas: every key's count, and the rounds over them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakValueDictionary

from gateway.config import KeyLimits
from gateway.http.quota_sharing import QuotaSharing
from gateway.http.shared_use import NO_LIMITS, SharedUse
from gateway.shared.background import Background

logger = logging.getLogger("prefixgate.quotas")

ROUND = 0.25
"""Seconds between two rounds, at most."""
ROUNDS = 6
"""Rounds in a lease, at least."""
PER_ROUND = 200
"""Keys that are stated in one round."""
WORTH_SAYING = 1.0
"""Seconds for which limits must have been local: a hiccup is counted, and no news."""


class SharedQuotas:
    """Args:
    replicas: how many there are now, this one among them.
    """

    def __init__(self, sharing: QuotaSharing, replicas: Callable[[], int]) -> None:
        self.sharing = sharing
        self._replicas = replicas
        # Held by the keys, and by what they have under way: a key that was removed and comes back
        # goes on with the same count as long as that lasts.
        self._uses: WeakValueDictionary[str, SharedUse] = WeakValueDictionary()
        self._local_since: float | None = None
        self._said_local = False
        self._background = Background("limits of API keys")

    def new_use(self, name: str, limits: KeyLimits) -> SharedUse:
        """The count of the key that has a name."""
        use = self._uses.get(name)
        if use is None:
            use = self._uses[name] = SharedUse(self.sharing, name, limits)
        return use

    def start(self) -> None:
        self._background.start(self._rounds)

    async def stop(self) -> None:
        """State what is left to state, as far as Redis takes it at once."""
        await self._background.stop()
        now = self.sharing.clock()
        for use in tuple(self._uses.values()):
            if use.due(now):
                use.exchange.state()
        await self.sharing.settled(2 * self.sharing.timeout)

    def round(self) -> None:
        """Have Redis told what it has not been asked about."""
        sharing = self.sharing
        local = sharing.local
        self._say(local)
        if not sharing.asks:
            return
        if not local:
            self.sharing.replicas = max(1, self._replicas())
        # One of them finds out whether it works again.
        most = 1 if local else PER_ROUND
        now = sharing.clock()
        for use in tuple(self._uses.values()):
            if use.due(now):
                use.exchange.state()
                most -= 1
                if most == 0:
                    return
        if local and most:
            # Nothing is owed: what failed came to nothing by itself.
            sharing.succeeded()

    def _say(self, local: bool) -> None:
        sharing = self.sharing
        if local:
            now = sharing.clock()
            if self._local_since is None:
                self._local_since = now
            if self._said_local or now - self._local_since < WORTH_SAYING:
                return
            if all(use.limits == NO_LIMITS for use in tuple(self._uses.values())):
                return
            self._said_local = True
            logger.warning(
                "API keys' limits are this replica's own for now"
                " (auth.without_redis: %s, %d replicas)",
                sharing.without_redis.value,
                sharing.replicas,
            )
            return
        self._local_since = None
        if self._said_local:
            self._said_local = False
            logger.info("API keys' limits hold over all replicas")

    async def _rounds(self) -> None:
        while True:
            self.round()
            await asyncio.sleep(min(ROUND, self.sharing.lease / ROUNDS))
