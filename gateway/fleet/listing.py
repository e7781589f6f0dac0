"""The lists that sources give of backends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from gateway.config import BackendConfig, BackendOptions
from gateway.fleet.address import Address
from gateway.fleet.backend import Source, check_models, id_of

logger = logging.getLogger("prefixgate.fleet")


class Origin(NamedTuple):
    """Who gives a list: a source, and which of its kind where there are several."""

    source: Source
    feed: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """What the lower one says holds before the others."""
        return list(Source).index(self.source), self.feed


class Listed(NamedTuple):
    """What one origin says of one address.

    `incarnation` tells one engine from the next at the same address; "" when that is not known.
    """

    config: BackendConfig
    incarnation: str = ""


B = TypeVar("B", bound=BackendOptions)


def completed(options: B, other: BackendOptions) -> B:
    """What is said of a backend; what is left at its default is taken from elsewhere.

    Raises:
        ValueError: the two do not go together.
    """
    default = BackendOptions()
    taken = {
        name: getattr(other, name)
        for name in BackendOptions.__struct_fields__
        if getattr(options, name) == getattr(default, name)
    }
    return msgspec.structs.replace(options, **taken)


def by_id(
    entries: Sequence[BackendConfig],
    incarnations: Mapping[str, str],
    known: Mapping[str, Listed],
) -> dict[str, Listed]:
    """A list, by the backends' ids.

    Args:
        known: the list before, of which the addresses need not be read again.

    Raises:
        ConfigError: an entry's address or models cannot be used.
    """
    ids = {listed.config.url: id for id, listed in known.items()}
    found: dict[str, Listed] = {}
    for entry in entries:
        check_models(entry.models)
        id = ids.get(entry.url) or id_of(Address.parse(entry.url))
        if id in found:
            logger.warning("backend %s is named twice: merged", Address.parse(entry.url).url)
            entry = completed(entry, found[id].config)
        found[id] = Listed(entry, incarnations.get(entry.url, ""))
    return found
