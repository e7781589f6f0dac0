"""What was set over the admin API, laid over what the settings say.

An entry is the smallest thing that can be set by itself; its name is a path:

    policy                      the policy with its parameters
    scheduling/OPTION           one option, as "scheduling/target.seconds"
    backends/ID/WHAT            added, drained, removed, or one member of a patch
    keys/NAME/OPTION            one option of an API key; its hash if it was made over the API

What cannot be used here (it is of a newer version, or does not go with this replica's settings) is
left out and told, and does no harm to the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.changes import changes
from gateway.config import (
    ApiKey,
    Auth,
    ConfigError,
    PolicyConfig,
    Section,
    Settings,
    convert,
)
from gateway.fleet.standing import Standing
from policies.registry import build

_PARTS = {"policy": 0, "scheduling": 1, "backends": 2, "keys": 2}
"""How many names follow that of a section."""
SECTIONS = frozenset(_PARTS)

Values = Mapping[str, Any]
"""Plain data by the entries' names."""
Ignored = dict[str, str]
"""Why entries were left out, by name."""

S = TypeVar("S", bound=Section)


class Laid(NamedTuple):
    """What was laid over the settings last: to do it again takes milliseconds when it is much."""

    base: Settings
    values: dict[str, Any]
    ignored: Ignored


def over(base: Settings, values: Values, ignored: Ignored) -> Settings:
    """Settings with entries over them; those of backends are no settings.

    Args:
        ignored: gets the entries that cannot be used.
    """
    _ignore_unknown(values, ignored)
    scheduling = {
        name.removeprefix("scheduling/"): value
        for name, value in values.items()
        if name.startswith("scheduling/") and _is_known(name)
    }
    return msgspec.structs.replace(
        base,
        policy=_policy(base.policy, values, ignored),
        scheduling=_laid(base.scheduling, scheduling, "scheduling/", ignored),
        auth=_auth(base.auth, _by_owner("keys", values), ignored),
    )


def differences(before: Section, after: Section, above: str) -> dict[str, Any]:
    """Entries that make a section what it is after a change.

    Args:
        above: what their names begin with.
    """
    tree = msgspec.to_builtins(after)
    found = {}
    for option in changes(before, after):
        value = tree
        for part in option.split("."):
            value = value[part]
        found[above + option] = value
    return found


def outdates(
    before: Settings, after: Settings, options: Collection[str], names: Iterable[str]
) -> set[str]:
    """Those of some entries about which a file says something new.

    Args:
        before, after: as the file has them.
        options: those that differ.
    """
    old, new = ({key.name: key for key in each.auth.keys} for each in (before, after))
    keys = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    settled = set(map(entry_of, options))
    return {
        name
        for name in names
        if name in settled or (name.startswith("keys/") and name.split("/")[1] in keys)
    }


def entry_of(option: str) -> str:
    """The name of the entry that stands in an option's place, if there is one."""
    return option.replace("scheduling.", "scheduling/", 1)


def standings(values: Values, ignored: Ignored) -> dict[str, Standing]:
    """What is said of backends, by their ids.

    Args:
        values: of backends alone.
        ignored: as of `over`.
    """
    _ignore_unknown(values, ignored)
    return {
        id: _usable(Standing, {}, said, f"backends/{id}/", ignored)
        for id, said in _by_owner("backends", values).items()
    }


def of_standing(id: str, standing: Standing) -> dict[str, Any]:
    """The entries of one backend."""
    said: dict[str, Any] = msgspec.to_builtins(standing)
    return {f"backends/{id}/{what}": value for what, value in said.items()}


def _policy(policy: PolicyConfig, values: Values, ignored: Ignored) -> PolicyConfig:
    if "policy" not in values:
        return policy
    try:
        said = convert(values["policy"], PolicyConfig, "policy")
        build(said.name, said.params)
    except ConfigError as error:
        ignored["policy"] = str(error)
        return policy
    return said


def _auth(auth: Auth, said: Mapping[str, Values], ignored: Ignored) -> Auth:
    """Keys of the settings in their order, then the others by name."""
    if not auth.enabled or not said:
        return auth

    def ignore(name: str, why: str) -> None:
        ignored.update({f"keys/{name}/{option}": why for option in said[name]})

    keys = []
    for key in auth.keys:
        options = said.get(key.name, {})
        if "hash" in options:  # another key, of the same name
            ignore(key.name, "the settings have such a key")
            options = {}
        keys.append(_laid(key, options, f"keys/{key.name}/", ignored))
    hashes = {key.hash for key in keys}
    for name in sorted(said.keys() - {key.name for key in auth.keys}):
        bare = {"name": name, "hash": said[name].get("hash", "")}
        try:
            made = convert(bare, ApiKey, "key")
        except ConfigError:
            # The key went and a change of it came late, or its hash is of a newer kind.
            ignore(name, "has no hash that can be used")
            continue
        if made.hash in hashes:
            ignore(name, "is the same key as another one")
            continue
        hashes.add(made.hash)
        keys.append(_laid(made, said[name], f"keys/{name}/", ignored))
    return msgspec.structs.replace(auth, keys=tuple(keys))


def _is_known(name: str) -> bool:
    section, *rest = name.split("/")
    return _PARTS.get(section) == len(rest)


def _ignore_unknown(values: Values, ignored: Ignored) -> None:
    unknown = [name for name in values if not _is_known(name)]
    ignored.update(dict.fromkeys(unknown, "is not known to this version"))


def _by_owner(section: str, values: Values) -> dict[str, dict[str, Any]]:
    """The entries of a section, by whose they are and what they are about."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith(f"{section}/") and _is_known(name):
            _, owner, what = name.split("/")
            found.setdefault(owner, {})[what] = value
    return found


def _laid(section: S, said: Values, above: str, ignored: Ignored) -> S:
    if not said:
        return section
    return _usable(type(section), msgspec.to_builtins(section), said, above, ignored)


def _usable(into: type[S], tree: dict[str, Any], said: Values, above: str, ignored: Ignored) -> S:
    """A section with options set, or with as many of them as go together."""
    try:
        return convert(_set(tree, said), into, above)
    except ConfigError:
        for option, value in sorted(said.items()):
            try:
                after = _set(tree, {option: value})
                convert(after, into, above)
                tree = after
            except ConfigError as error:
                ignored[above + option] = str(error)
        return convert(tree, into, above)


def _set(tree: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with values at dotted places."""
    copy = dict(tree)
    for option, value in said.items():
        first, dot, rest = option.partition(".")
        inner = copy.get(first)
        copy[first] = (
            _set(inner if isinstance(inner, dict) else {}, {rest: value}) if dot else value
        )
    return copy
