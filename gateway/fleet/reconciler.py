"""What all sources say of the fleet, made into one fleet.

Each source gives its whole list, and the fleet gets the difference: news that got lost are made up
for by the next list. The rules:

- An address is one backend, however many name it. What `backends:` in the config says of it holds
  before the admin API, that before files, Kubernetes and the DNS; what the first leaves at its
  default is taken from the next. What was patched over the admin API holds before all, until a
  source says something else of that very thing.
- A backend goes when nobody names it any more. Where a file, Kubernetes or the DNS was the last, it
  gets nothing new but is kept for a while: if it is named again it is as it was. Where it was the
  config or the admin API, it goes at once.
- One that was removed over the admin API stays away, whoever names it, until it is added there
  again, or a source says something else of it, or drops it and names it again.
- Where replicas share what was said over the admin API, it stays until it is taken back there,
  whatever sources come to say: they do not say it to all replicas at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.config import BackendConfig, ConfigError
from gateway.fleet.backend import Backend, BackendPatch, BackendState, Source, check_models
from gateway.fleet.fleet import Added, Fleet
from gateway.fleet.listing import Listed, Origin, by_id, completed
from gateway.fleet.standing import Standing
from gateway.types import Clock


class Reconciler:
    """The only one that adds to the fleet and removes from it.

    Attributes:
        linger: how long a backend is kept that no file, Kubernetes or DNS names any more, seconds.
        lasting: what was said over the admin API holds until it is taken back there.
    """

    def __init__(self, fleet: Fleet, clock: Clock, linger: float) -> None:
        self.linger = linger
        self.lasting = False
        self._fleet = fleet
        self._clock = clock
        self._lists: dict[Origin, dict[str, Listed]] = {}
        self._dismissed: set[tuple[Origin, str]] = set()
        self._away: set[str] = set()
        """Dismissed whoever comes to name them, where that lasts."""
        self._drained: set[str] = set()
        self._patches: dict[str, dict[str, Any]] = {}
        self._unlisted: dict[str, tuple[Backend, float]] = {}
        """By id, with the time when it was named for the last time."""

    def offer(
        self,
        source: Source,
        entries: Sequence[BackendConfig],
        feed: str = "",
        incarnations: Mapping[str, str] | None = None,
    ) -> None:
        """Take a source's full list as of now. An empty list is one, too.

        Args:
            feed: which of the sources of this kind.
            incarnations: by URL, where the source can tell engines apart that follow each other at
                one address.

        Raises:
            ConfigError: an entry's address or models cannot be used. Then nothing has changed.
        """
        origin = Origin(source, feed)
        known = self._lists.get(origin, {})
        found = by_id(entries, incarnations or {}, known)
        if found == known:
            return
        successors = set()
        for id in found.keys() | known.keys():
            old, new = known.get(id), found.get(id)
            if old == new:
                continue
            if not self.lasting:
                self._dismissed.discard((origin, id))
            if old and new and not self.lasting:
                self._outdate(id, old.config, new.config)
            if old and new and len({old.incarnation, new.incarnation} - {""}) == 2:
                successors.add(id)
        self._lists[origin] = found
        keep = source not in (Source.CONFIG, Source.ADMIN)
        for id in [*known, *(id for id in found if id not in known)]:
            if known.get(id) != found.get(id):
                self._settle(id, keep, successor=id in successors)

    def withdraw(self, source: Source, feed: str = "") -> None:
        """A source is no more, nor what it alone named."""
        self.offer(source, (), feed)
        self._lists.pop(Origin(source, feed), None)

    # what the operator does

    def add(self, config: BackendConfig) -> Added:
        """Add a backend over the admin API, where it may already be.

        Raises:
            ConfigError: its address or models cannot be used, or it may not be added.
        """
        [(id, listed)] = by_id((config,), {}, {}).items()
        self._fleet.check(config)
        own = self._lists.setdefault(Origin(Source.ADMIN), {})
        if id in own:
            listed = Listed(completed(listed.config, own[id].config))
        own[id] = listed
        self._readmit(id)
        new = self._fleet.find(id) is None
        self._settle(id)
        return Added(self._fleet.get(id), new)

    def patch(self, id: str, patch: BackendPatch) -> Backend:
        """Raises:
        UnknownBackend: there is none of that id.
        ConfigError: an empty model name.
        """
        backend = self._fleet.get(id)
        given = patch.given()
        check_models(given.get("models"))
        config = msgspec.structs.replace(backend.config, **given)
        added = self._fleet.add(config, backend.source)
        self._patches[id] = self._patches.get(id, {}) | given
        return added.backend

    def remove(self, id: str) -> None:
        """Remove a backend over the admin API, whoever names it.

        Raises:
            UnknownBackend: there is none of that id.
        """
        backend = self._fleet.get(id)
        self._lists.get(Origin(Source.ADMIN), {}).pop(id, None)
        named = self._dismiss(id)
        if self.lasting and (named or backend.source is not Source.ADMIN):
            self._away.add(id)
        self._patches.pop(id, None)
        self._drained.discard(id)
        self._remove(backend)

    def drain(self, id: str, on: bool) -> Backend:
        """Raises:
        UnknownBackend: there is none of that id.
        """
        backend = self._fleet.drain(id, on)
        if on:
            self._drained.add(id)
        else:
            self._drained.discard(id)
        return backend

    def standing(self, id: str) -> Standing:
        """What was said of a backend over the admin API, whether it is there or not."""
        added = self._lists.get(Origin(Source.ADMIN), {}).get(id)
        removed = any(other == id for _, other in self._dismissed) or id in self._away
        return Standing(
            added=UNSET if added is None else added.config,
            drained=id in self._drained or UNSET,
            removed=removed or UNSET,
            **self._patches.get(id, {}),
        )

    def stand(self, id: str, standing: Standing) -> None:
        """Have all that was said of a backend over the admin API be this.

        Raises:
            ConfigError: it may not be added, or not be patched so. That it is drained or removed
                holds nevertheless.
        """
        own = self._lists.setdefault(Origin(Source.ADMIN), {})
        own.pop(id, None)
        self._readmit(id)
        if standing.removed is True:
            self._dismiss(id)
            self._away.add(id)
        self._drained.discard(id)
        if standing.drained is True:
            self._drained.add(id)
        patch = standing.patch()
        self._patches.pop(id, None)
        try:
            check_models(patch.get("models"))
            if patch:
                self._patches[id] = patch
            if standing.added is not UNSET:
                [listed] = by_id((standing.added,), {}, {}).values()
                self._fleet.check(standing.added)
                own[id] = listed
            self._settle_or_keep(id)
        except ConfigError:
            own.pop(id, None)
            self._patches.pop(id, None)
            self._settle_or_keep(id)
            raise
        finally:
            if self._fleet.find(id) is not None:
                self._fleet.drain(id, id in self._drained)

    # what only time can do

    def expire(self) -> None:
        """Remove what nobody has named for long enough."""
        for backend, since in tuple(self._unlisted.values()):
            if self._clock() - since >= self.linger:
                self._remove(backend)

    # what is seen of it

    def ordered(self) -> list[Backend]:
        """The fleet, in an order that does not depend on what came first: those of the config in
        its order, then the others by their addresses."""
        config = list(self.listed(Source.CONFIG))
        return sorted(
            self._fleet,
            key=lambda backend: (
                (config.index(backend.id), "")
                if backend.source is Source.CONFIG
                else (len(config), backend.address.url)
            ),
        )

    def listed(self, source: Source, feed: str = "") -> Collection[str]:
        """Ids of the backends that a source names, those that were removed since among them."""
        return self._lists.get(Origin(source, feed), {}).keys()

    def unreachable(self, source: Source, feed: str = "") -> int:
        """How many backends a source names that do not answer their probes."""
        listed = self._lists.get(Origin(source, feed), {})
        return sum(
            backend.failed_probes > 0 or backend.condition is BackendState.EJECTED
            for backend in self._fleet
            if backend.id in listed
        )

    # how it is done

    def _settle(self, id: str, keep: bool = False, successor: bool = False) -> None:
        """Make one backend what is said of it now.

        Args:
            keep: remember it for a while if nobody names it.
            successor: it is another engine than before.
        """
        present = self._fleet.find(id)
        named = sorted(
            (
                origin
                for origin, listed in self._lists.items()
                if id in listed and (origin, id) not in self._dismissed and id not in self._away
            ),
            key=lambda origin: origin.rank,
        )
        if not named:
            if present is not None and keep and self.linger:
                self._unlisted[id] = present, self._clock()
                self._fleet.unlist(present)
            elif present is not None:
                self._remove(present)
            return
        if present is not None and successor:
            self._remove(present)
            present = None
        config, *others = (self._lists[origin][id].config for origin in named)
        for other in others:
            config = completed(config, other)
        config = msgspec.structs.replace(config, **self._patches.get(id, {}))
        source = named[0].source
        if present is None or (present.config, present.source) != (config, source):
            self._fleet.add(config, source, draining=id in self._drained)
        if self._unlisted.pop(id, None) is not None and present is not None:
            self._fleet.unlist(present, on=False)

    def _settle_or_keep(self, id: str) -> None:
        """The same; one that nobody names any more is kept for as long as it was to be."""
        kept = self._unlisted.get(id)
        if kept is None or id in self._away or id in self._lists[Origin(Source.ADMIN)]:
            self._settle(id)
        else:
            backend, _ = kept
            config = msgspec.structs.replace(backend.config, **self._patches.get(id, {}))
            self._fleet.add(config, backend.source)

    def _outdate(self, id: str, old: BackendConfig, new: BackendConfig) -> None:
        """Forget what was patched of a backend before a source came to say something else of it."""
        patch = self._patches.get(id, {})
        for name in tuple(patch):
            if getattr(old, name) != getattr(new, name):
                del patch[name]

    def _dismiss(self, id: str) -> bool:
        """Whether anybody names it."""
        naming = {(origin, id) for origin, listed in self._lists.items() if id in listed}
        self._dismissed |= naming
        return bool(naming)

    def _readmit(self, id: str) -> None:
        self._dismissed = {(origin, other) for origin, other in self._dismissed if other != id}
        self._away.discard(id)

    def _remove(self, backend: Backend) -> None:
        self._unlisted.pop(backend.id, None)
        if not self.lasting:
            self._patches.pop(backend.id, None)
            self._drained.discard(backend.id)
        self._fleet.remove(backend.id, expect=backend)
