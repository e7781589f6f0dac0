"""Policies by name: the built-in ones, and those that installed packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gateway.config import ConfigError, convert
from policies.base import Params, Policy
from policies.consistent_hash import ConsistentHash
from policies.least_load import LeastLoad
from policies.power_of_two import PowerOfTwo
from policies.prefix_affinity import PrefixAffinity
from policies.round_robin import RoundRobin
from policies.session import Session

GROUP = "prefixgate.policies"

# They are entry points too, but a source tree that is not installed has none.
BUILT_IN: tuple[type[Policy], ...] = (
    PrefixAffinity,
    LeastLoad,
    PowerOfTwo,
    RoundRobin,
    ConsistentHash,
    Session,
)

_PARTS = ("name", "late_binding", "params_type", "choose", "placed", "explain")


def names() -> list[str]:
    """All policies that can be asked for, the built-in ones first."""
    built_in = [policy.name for policy in BUILT_IN]
    others = {entry.name for entry in entry_points(group=GROUP)}.difference(built_in)
    return built_in + sorted(others)


def find(name: str) -> type[Policy]:
    """The class of a policy. A built-in name cannot be taken by a package.

    Raises:
        ConfigError: there is none of that name, or the package that brings it is broken.
    """
    for policy in BUILT_IN:
        if policy.name == name:
            return policy
    entries = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if not entries:
        raise ConfigError(f"policy: unknown name {name!r}, expected one of {', '.join(names())}")
    if len(entries) > 1:
        raise ConfigError(f"policy {name}: brought by several packages: {', '.join(entries)}")
    [entry] = entries.values()
    return _load(entry)


def build(name: str, params: Mapping[str, Any]) -> Policy:
    """A policy with checked parameters.

    Raises:
        ConfigError: the name or a parameter is unknown, or a value is not allowed.
    """
    policy = find(name)
    return policy(convert(params, policy.params_type, f"policy {name}"))


def _load(entry: EntryPoint) -> type[Policy]:
    try:
        policy: Any = entry.load()
    except Exception as error:
        raise ConfigError(f"policy {entry.name}: cannot load {entry.value}: {error}") from error
    is_class = isinstance(policy, type)
    missing = [part for part in _PARTS if not hasattr(policy, part)]
    if missing or not is_class:
        lacks = f": it has no {', '.join(missing)}" if missing else ""
        raise ConfigError(f"policy {entry.name}: {entry.value} is not a policy class{lacks}")
    if not (isinstance(policy.params_type, type) and issubclass(policy.params_type, Params)):
        raise ConfigError(f"policy {entry.name}: params_type must be a subclass of Params")
    loaded: type[Policy] = policy
    return loaded
