"""What a source of backends is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.config import BackendConfig, BackendOptions, DnsSource, FileSource, KubernetesSource
from gateway.fleet.backend import Source


def at(url: str, options: BackendOptions) -> BackendConfig:
    """Raises:
    ValueError: the options do not go with the address.
    """
    return BackendConfig(url=url, **msgspec.structs.asdict(options))


class FeedFailure(Exception):
    """A list could not be read; the message says why, for people, and holds no secrets."""


@dataclass(slots=True, frozen=True)
class Listing:
    """A source's full list as of now.

    Attributes:
        incarnations: by URL, where the source can tell engines apart that follow each other at one
            address.
        left_out: what is in the list but cannot be used, and why.
    """

    entries: tuple[BackendConfig, ...]
    incarnations: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class Feed(Protocol):
    """One configured source.

    Attributes:
        name: unique among the feeds, the same after a restart.
        settings: what it was made of.
        patience: how long the pause after many failures in a row may become, seconds.
    """

    source: Source
    name: str
    patience: float

    @property
    def settings(self) -> FileSource | DnsSource | KubernetesSource: ...

    def lists(self) -> AsyncGenerator[Listing, None]:
        """The list, as often as it is read or may have changed. Called again after a failure.

        Raises:
            FeedFailure: it cannot be read.
        """
