"""The networks that KV caches are handed over by: one for each model whose shape is known.

How many bytes a token has depends on the model, so what is learnt of one model's transfers is kept
apart from the others', even where they cross the same cards.
"""

from __future__ import annotations

import logging

from gateway.config import ConfigError, Disagg
from gateway.disagg.links import Links
from gateway.disagg.shape import KvShape, shape_of

GIGABIT = 1e9 / 8
"""Bytes."""

_ASSUMED = KvShape(per_token=131_072.0)
"""Of 32 layers with 8 heads of 128 numbers in 16 bits."""

logger = logging.getLogger("prefixgate.disagg")


class Networks:
    """Raises:
    ConfigError: a model's config.json cannot be read, or does not tell enough.
    """

    def __init__(self, settings: Disagg) -> None:
        self._settings = settings
        self._links = {
            model: Links(shape_of(cache, model), prior=self._prior)
            for model, cache in settings.models.items()
        }
        self._assumed: dict[str, Links] = {}

    def of(self, model: str) -> Links | None:
        """None where nothing says what the model's cache takes: nothing is known in bytes then.

        Args:
            model: by the name that backends list; for an adapter, that of its model.
        """
        return self._links.get(model)

    def links(self, model: str) -> Links:
        """As `of`; for other models links for placing alone, whose bytes are none: a cache as that
        of an 8B model is assumed, and what is learnt is how long tokens take."""
        known = self._links.get(model) or self._assumed.get(model)
        if known is None:
            known = self._assumed[model] = Links(_ASSUMED, prior=self._prior)
        return known

    @property
    def _prior(self) -> float:
        return self._settings.bandwidth * GIGABIT

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
                    known = Links(shape_of(cache, model))
                except ConfigError as error:
                    logger.error("%s; what was known of the model stays", error)
            if known is not None:
                known.prior = settings.bandwidth * GIGABIT
                links[model] = known
        self._settings, self._links = settings, links
        for assumed in self._assumed.values():
            assumed.prior = self._prior

    def removed(self, id: str) -> None:
        """An engine is gone."""
        for links in (*self._links.values(), *self._assumed.values()):
            links.removed(id)
