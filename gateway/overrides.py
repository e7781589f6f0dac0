"""Changes over the admin API: checked, in force at once, and kept for as long as can be.

Without Redis they are this process's: a reload in which the file says something new of the same
thing takes its place, and a restart forgets them. With Redis they are all replicas' and hold over
every replica's file until they are changed or dropped over the admin API.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.admin.control import UnknownKey
from gateway.changes import changes, taken_over
from gateway.config import (
    ApiKey,
    BackendConfig,
    ConfigError,
    NewKey,
    PolicyConfig,
    Scheduling,
    Settings,
    changed,
)
from gateway.fleet.backend import Backend, BackendPatch
from gateway.fleet.standing import Standing
from gateway.http.keys import Keys
from gateway.overlay import (
    SECTIONS,
    Laid,
    differences,
    entry_of,
    of_standing,
    outdates,
    over,
    standings,
)
from gateway.reload import SECTIONS as IN_FORCE
from gateway.secrets import hash_key, new_key
from gateway.shared.records import Publisher
from gateway.shared.state import AdminState
from gateway.shared.store import Entry, Store

if TYPE_CHECKING:
    from gateway.app import Gateway

logger = logging.getLogger("prefixgate.state")

_TOLD = 10
"""Names of entries in one line of the log."""


class Held(StrEnum):
    """Where something that was set is held."""

    HERE = "here"
    """By this process alone: there is no Redis."""
    SHARED = "shared"
    UNSHARED = "unshared"
    """It was set or taken back here, and Redis does not have that yet."""
    IGNORED = "ignored"
    """Wherever it is held: it cannot be used here."""


class Overrides:
    """Every change raises `ConfigError` where it cannot be; then nothing has changed.

    Args:
        gateway: whose settings and backends they are about. It calls nothing of this while it is
            being made.

    Attributes:
        state: the entries that hold, and whether all replicas have them.
        base: the settings without them.
        ignored: entries that cannot be used here, and why.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.base = gateway.settings
        self.state = AdminState(self._take, gateway.clock)
        self.ignored: dict[str, str] = {}
        self._laid: Laid | None = None
        self._backends: dict[str, Any] = {}
        """What was said of backends, as it is in force."""

    def share(self, store: Store, publisher: Publisher) -> None:
        """Have them shared, from before the start on."""
        self.state.share(store, publisher)
        self._gateway.reconciler.lasting = True

    @property
    def lasting(self) -> bool:
        """Whether they outlive a reload and a restart."""
        return self.state.shared is not None

    def entries(self) -> dict[str, Entry]:
        """Those that hold, by name."""
        if not self.lasting:  # what sources said since may have outdated some
            for id in {name.split("/")[1] for name in self._backends}:
                self._note_backend(id)
        return self.state.entries

    def counts(self) -> dict[Held, int]:
        """How many entries there are, by where they are held, and of these the ignored ones."""
        entries = self.entries()
        unshared = len(self.state.unshared)
        shared = len(entries.keys() - self.state.unshared.keys()) if self.lasting else 0
        return {
            Held.HERE: 0 if self.lasting else len(entries),
            Held.SHARED: shared,
            Held.UNSHARED: unshared,
            Held.IGNORED: len(self.ignored),
        }

    # settings

    async def set_policy(self, policy: PolicyConfig) -> None:
        await self._set({"policy": msgspec.to_builtins(policy)})

    async def set_scheduling(self, scheduling: Scheduling) -> None:
        now = self._gateway.settings.scheduling
        await self._set(differences(now, scheduling, "scheduling/"))

    async def add_key(self, options: NewKey) -> str:
        """Returns:
        The key. It is not kept: nothing can show it again.
        """
        auth, name = self._gateway.settings.auth, options.name
        if not auth.enabled:
            raise ConfigError("auth.enabled is false: keys are not asked for", field="auth.enabled")
        if any(key.name == name for key in auth.keys):
            raise ConfigError(f"body: name: there is a key {name!r} already", field="name")
        key = new_key()
        bare = ApiKey(name=name, hash=hash_key(key))
        made = msgspec.convert(msgspec.to_builtins(options) | {"hash": bare.hash}, ApiKey)
        above = f"keys/{name}/"
        entries = differences(bare, made, above) | {f"{above}hash": bare.hash}
        await self._set(entries, gone=self._below(above) - entries.keys())
        return key

    async def patch_key(self, name: str, options: Mapping[str, Any]) -> None:
        """Args:
            options: some of `KeyOptions`, as plain data.

        Raises:
            UnknownKey
        """
        key = self._key(name)
        await self._set(differences(key, changed(key, dict(options)), f"keys/{name}/"))

    async def remove_key(self, name: str) -> None:
        """Raises:
        UnknownKey
        """
        self._key(name)
        if any(key.name == name for key in self.base.auth.keys):
            raise ConfigError(
                f"the key {name!r} is in the settings: take it out there; until then"
                ' {"models": []} keeps it from everything'
            )
        await self._set({}, gone=self._below(f"keys/{name}/"))

    async def drop(self, section: str) -> None:
        """Go back to what the settings and the sources say.

        Args:
            section: one of `SECTIONS`.
        """
        assert section in SECTIONS
        below = {section} if section == "policy" else self._below(f"{section}/")
        await self._set({}, gone=below & self.entries().keys())

    def reloaded(self, settings: Settings, options: list[str]) -> Settings:
        """What holds after a reload.

        Args:
            settings: the file's.
            options: those that have changed in it.

        Raises:
            ValueError: they do not go together with what was set over the admin API. Nothing has
                changed.
        """
        base = taken_over(self.base, settings, options)
        outdated: set[str] = set()
        if not self.lasting:
            outdated = outdates(self.base, settings, options, self.state.entries)
        values = {name: value for name, value in self._values().items() if name not in outdated}
        ignored: dict[str, str] = {}
        after = over(base, values, ignored)
        if not self.lasting and ignored:
            raise ValueError("; ".join(ignored.values()))
        self.state.note({}, outdated)
        self.base = base
        self._tell_ignored(ignored)
        return after

    def hiding(self, options: list[str]) -> list[str]:
        """Those of some options of the file in whose place something was set."""
        names = self.state.entries
        return [option for option in options if entry_of(option) in names]

    # backends

    async def add_backend(self, config: BackendConfig) -> tuple[Backend, bool]:
        if self.lasting and config.api_key is not None:
            raise ConfigError(
                "body: api_key: is not written to Redis, where all replicas would read it: name"
                " backends that need a key in the config file",
                field="api_key",
            )
        self.state.check({"backends//added": msgspec.to_builtins(config)})
        added = self._gateway.reconciler.add(config)
        await self._keep_backend(added.backend.id)
        return added

    async def patch_backend(self, id: str, patch: BackendPatch) -> Backend:
        self.state.check({f"backends/{id}/{name}": v for name, v in patch.given().items()})
        backend = self._gateway.reconciler.patch(id, patch)
        await self._keep_backend(id)
        return backend

    async def drain_backend(self, id: str, on: bool) -> Backend:
        self.state.check({f"backends/{id}/drained": True})
        backend = self._gateway.reconciler.drain(id, on)
        await self._keep_backend(id)
        return backend

    async def remove_backend(self, id: str) -> None:
        self.state.check({f"backends/{id}/removed": True})
        self._gateway.reconciler.remove(id)
        await self._keep_backend(id)

    async def _keep_backend(self, id: str) -> None:
        self._note_backend(id)
        await self.state.push()

    def _note_backend(self, id: str) -> None:
        """Have the entries of a backend be what the reconciler knows."""
        above = f"backends/{id}/"
        now = of_standing(id, self._gateway.reconciler.standing(id))
        before = {name: v for name, v in self._backends.items() if name.startswith(above)}
        gone = before.keys() - now.keys()
        self.state.note({name: v for name, v in now.items() if before.get(name, ...) != v}, gone)
        self._backends = {n: v for n, v in self._backends.items() if n not in gone} | now

    # how it is done

    async def _set(self, values: Mapping[str, Any], gone: Collection[str] = ()) -> None:
        """Change entries, and have the change in force."""
        ignored: dict[str, str] = {}
        others = {name: value for name, value in self._values().items() if name not in gone}
        after = over(self.base, others | dict(values), ignored)
        wrong = [why for name, why in ignored.items() if name in values]
        if wrong:
            raise ConfigError(f"body: {wrong[0]}")
        if after.auth != self._gateway.settings.auth:
            Keys(after.auth)  # raises where a key of the settings can no longer be read
        self.state.note(values, gone)
        self._take()
        await self.state.push()

    def _take(self) -> None:
        """Have the entries in force, those of this replica and those of others."""
        said: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in self._values().items():
            (said if name.startswith("backends/") else rest)[name] = value
        laid = self._laid
        if laid is None or (laid.base, laid.values) != (self.base, rest):
            before = {} if laid is None else laid.values
            laid = Laid(self.base, rest, {})
            settled = self._settle(over(self.base, rest, laid.ignored))
            self._laid = laid if settled else None
            _tell_changed(before, rest)
        ignored = dict(laid.ignored)
        differ = _differing(self._backends, said)
        self._backends = said
        unusable = {name for name in self.ignored if name.startswith("backends/")}
        found = standings(said, ignored)
        for id in sorted({name.split("/")[1] for name in differ | unusable}):
            try:
                self._gateway.reconciler.stand(id, found.get(id, Standing()))
            except ConfigError as error:
                ignored[f"backends/{id}/added"] = str(error)
        self._tell_ignored(ignored)

    def _settle(self, settings: Settings) -> bool:
        """Whether all of it could be put into force."""
        gateway = self._gateway
        before, gateway.settings = gateway.settings, settings
        for section in dict.fromkeys(name.partition(".")[0] for name in changes(before, settings)):
            try:
                IN_FORCE[section](gateway, settings)
            except ConfigError as error:  # a key's file is no longer there
                logger.error("%s stays as it was: %s", section, error)
                gateway.settings = msgspec.structs.replace(gateway.settings, auth=before.auth)
                return False
        return True

    def _values(self) -> dict[str, Any]:
        return {
            name: msgspec.json.decode(entry.value or b"null")
            for name, entry in self.state.entries.items()
        }

    def _key(self, name: str) -> ApiKey:
        for key in self._gateway.settings.auth.keys:
            if key.name == name:
                return key
        raise UnknownKey(name)

    def _below(self, above: str) -> set[str]:
        return {name for name in self.state.entries if name.startswith(above)}

    def _tell_ignored(self, ignored: dict[str, str]) -> None:
        for name in ignored.keys() - self.ignored.keys():
            logger.warning("set over the admin API, not used here: %s: %s", name, ignored[name])
        self.ignored = ignored


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    names = before.keys() | after.keys()
    return {name for name in names if before.get(name, ...) != after.get(name, ...)}


def _tell_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    names = sorted(_differing(before, after))
    if names:
        more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
        logger.info("set or taken back over the admin API: %s%s", ", ".join(names[:_TOLD]), more)
