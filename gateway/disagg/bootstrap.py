"""Asking Mooncake's bootstrap servers for the engine ids of prefill engines."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.config import ConfigError, ConnectorName
from gateway.disagg.mooncake import QUERY, bootstrap_url, engine_ids
from gateway.disagg.pairs import Pairs
from gateway.fleet.access import Access
from gateway.fleet.address import Address
from gateway.fleet.backend import Backend
from gateway.fleet.page import NoPage, PageReader
from gateway.types import Role

logger = logging.getLogger("prefixgate.disagg")


class Bootstraps:
    """Engines make up their ids anew at each start, so that they are asked for again and again.

    Args:
        timeout: seconds that a server has to answer, as of now.
        learnt: told when an engine's ids are not what they were.
    """

    def __init__(
        self, pairs: Pairs, timeout: Callable[[], float], learnt: Callable[[], None]
    ) -> None:
        self._pairs = pairs
        self._timeout = timeout
        self._learnt = learnt

    async def ask(self, backend: Backend) -> None:
        """Ask for a backend's ids, where they matter and the settings do not tell them."""
        connector = self._pairs.speaks(backend)
        if (
            connector is None
            or connector.name is not ConnectorName.MOONCAKE
            or backend.role is not Role.PREFILL
        ):
            return
        transfer = backend.config.transfer
        if transfer is not None and transfer.engine_id is not None:
            return
        try:
            address = Address.parse(bootstrap_url(self._pairs.side(backend)))
            access = Access(rule=backend.access.rule)
            page = await PageReader(address, self._timeout(), access).get(QUERY)
            ids = engine_ids(page.body)
        except (NoPage, ConfigError, ValueError) as failure:
            logger.debug("engine ids of backend %s are not to be had: %s", backend.id, failure)
            return
        if self._pairs.learn(backend.id, ids):
            logger.info("backend %s hands caches over as %s", backend.id, ", ".join(ids))
            self._learnt()
