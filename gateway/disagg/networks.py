"""The networks that KV caches are handed over by: one for each model whose shape is known.

How many bytes a token has depends on the model, so what is learnt of one model's transfers is kept
apart from the others', even where they cross the same cards.
"""

from __future__ import annotations

import logging

from gateway.config import ConfigError, Disagg
from gateway.disagg.links import Links
from gateway.disagg.shape import shape_of

GIGABIT = 1e9 / 8
"""Bytes."""

logger = logging.getLogger("prefixgate.disagg")


class Networks:
    """Raises:
    ConfigError: a model's config.json cannot be read, or does not tell enough.
    """

    def __init__(self, settings: Disagg) -> None:
        self._settings = settings
        self._links = {
            model: Links(shape_of(cache), prior=settings.bandwidth * GIGABIT)
            for model, cache in settings.models.items()
        }

    def of(self, model: str) -> Links | None:
        """None where nothing says what the model's cache takes: nothing is known in bytes then.

        Args:
            model: by the name that backends list; for an adapter, that of its model.
        """
        return self._links.get(model)

    def reconfigure(self, settings: Disagg) -> None:
        """Go by other settings. What was learnt of models whose shape is as before stays.

        A config.json that could be read when the settings were tried, and cannot now, changes
        nothing for its model.
        """
        before, links = self._settings, {}
        for model, cache in settings.models.items():
            known = self._links.get(model)
            if known is None or cache != before.models.get(model):
                try:
                    known = Links(shape_of(cache))
                except ConfigError as error:
                    logger.error("disagg.models.%s is as it was: %s", model, error)
            if known is not None:
                known.prior = settings.bandwidth * GIGABIT
                links[model] = known
        self._settings, self._links = settings, links

    def removed(self, id: str) -> None:
        """An engine is gone."""
        for links in self._links.values():
            links.removed(id)
