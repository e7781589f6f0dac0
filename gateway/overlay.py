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

from collections.abc import Mapping
from typing import Any, TypeVar

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

SECTIONS = ("policy", "scheduling", "backends", "keys")

Values = Mapping[str, Any]
"""Plain data by the entries' names."""
Ignored = dict[str, str]
"""Why entries were left out, by name."""

S = TypeVar("S", bound=Section)


def over(base: Settings, values: Values, ignored: Ignored) -> Settings:
    """Settings with entries over them; those of backends are no settings.

    Args:
        ignored: gets the entries that cannot be used.
    """
    for name in values:
        if not is_known(name):
            ignored[name] = "is not known to this version"
    return msgspec.structs.replace(
        base,
        policy=_policy(base.policy, values, ignored),
        scheduling=_laid(base.scheduling, "scheduling/", values, ignored),
        auth=_auth(base.auth, values, ignored),
    )


def is_known(name: str) -> bool:
    """Whether this version knows what an entry is about."""
    section, *rest = name.split("/")
    return (section, len(rest)) in (
        ("policy", 0),
        ("scheduling", 1),
        ("backends", 2),
        ("keys", 2),
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


def standings(values: Values, ignored: Ignored) -> dict[str, Standing]:
    """What is said of backends, by their ids."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith("backends/") and is_known(name):
            _, id, what = name.split("/")
            found.setdefault(id, {})[what] = value
    return {
        id: _usable(Standing, {}, said, f"backends/{id}/", ignored) for id, said in found.items()
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


def _auth(auth: Auth, values: Values, ignored: Ignored) -> Auth:
    """Keys of the settings in their order, then the others by name."""
    if not auth.enabled:
        return auth
    said = {name.split("/")[1] for name in values if name.startswith("keys/") and is_known(name)}
    settled = {key.name for key in auth.keys}
    keys = []
    for key in auth.keys:
        above = f"keys/{key.name}/"
        if above + "hash" in values:  # another key, of the same name
            ignored.update(dict.fromkeys(_below(above, values), "the settings have such a key"))
            keys.append(key)
        else:
            keys.append(_laid(key, above, values, ignored))
    for name in sorted(said - settled):
        above = f"keys/{name}/"
        try:
            made = ApiKey(name=name, hash=convert(values.get(above + "hash"), str, "hash"))
            convert(msgspec.to_builtins(made), ApiKey, above)
        except ConfigError:
            # Its hash went, and a change of it came late; or the hash is of a newer kind.
            ignored.update(dict.fromkeys(_below(above, values), "has no hash that can be used"))
        else:
            keys.append(_laid(made, above, values, ignored))
    return msgspec.structs.replace(auth, keys=tuple(keys))


def _below(above: str, values: Values) -> list[str]:
    return [name for name in values if name.startswith(above)]


def _laid(section: S, above: str, values: Values, ignored: Ignored) -> S:
    said = {name.removeprefix(above): values[name] for name in _below(above, values)}
    return _usable(type(section), msgspec.to_builtins(section), said, above, ignored)


def _usable(
    into: type[S], tree: dict[str, Any], said: dict[str, Any], above: str, ignored: Ignored
) -> S:
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
