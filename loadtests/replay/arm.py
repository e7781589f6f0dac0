"""What is compared: a policy, with the scheduling it runs under and what its gateway knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import yaml

from gateway.config import (
    ClassLimits,
    ConfigError,
    PolicyConfig,
    PrefillLimits,
    Scheduling,
    convert,
)
from loadtests.replay.knowledge import LIVE, Knowledge, Output
from policies import registry
from policies.base import Params, Policy

_NO_LIMIT = 10**9
_DAY = 86_400.0
_SCHEDULING = "scheduling."
_KNOWS = "knows."

PLAIN = Scheduling(
    gate=None,
    order="arrival",
    ranges=(),
    prefill=PrefillLimits(
        max_requests=_NO_LIMIT,
        max_uncached_tokens=_NO_LIMIT,
        max_waiting=_NO_LIMIT,
        max_waiting_tokens=_NO_LIMIT,
        max_wait=_DAY,
    ),
    decode=ClassLimits(
        max_requests=_NO_LIMIT,
        max_uncached_tokens=_NO_LIMIT,
        max_waiting=_NO_LIMIT,
        max_waiting_tokens=_NO_LIMIT,
        max_wait=_DAY,
    ),
)
"""Everything is sent on at once, as routers without a queue do."""

UNLEARNED = Knowledge(rates=False, output=Output.TYPICAL)
"""The published routers take engines for alike, and answers too."""


@dataclass(slots=True, frozen=True)
class Arm:
    """
    Attributes:
        name: as it was asked for.
        policy_type: made anew for every run, because policies keep state.
    """

    name: str
    policy_type: type[Policy]
    params: Params
    scheduling: Scheduling
    knowledge: Knowledge = LIVE

    def policy(self) -> Policy:
        return self.policy_type(self.params)


def find(text: str, scheduling: Scheduling, configured: PolicyConfig | None = None) -> Arm:
    """An arm as `NAME[?param=value&...][+gate|+plain]`.

    NAME is one of the gateway's policies, or a rival. Rivals send everything on at once, as their
    own routers do; `+gate` puts one under the gateway's scheduling, and `+plain` one of the
    gateway's own under none. Parameters that begin with `scheduling.` change a setting of the
    scheduling, those with `knows.` one of `Knowledge`, the others one of the policy; values are
    YAML.

    Args:
        scheduling: the gateway's.
        configured: parameters of the policy of this name, over which those in `text` go.

    Raises:
        ConfigError: the policy, a parameter or a value is not known or not allowed.
    """
    where = f"policy {text}"
    head, plus, suffix = text.partition("+")
    if plus and suffix not in ("gate", "plain"):
        raise ConfigError(f"{where}: unknown suffix +{suffix}, expected +gate or +plain")
    name, _, query = head.partition("?")
    rivals = _rivals()
    policy_type = rivals[name] if name in rivals else registry.find(name)
    if suffix == "plain" or (name in rivals and suffix != "gate"):
        scheduling = PLAIN
    params: dict[str, Any] = {}
    if configured is not None and configured.name == name and name not in rivals:
        params |= configured.params
    knows: dict[str, Any] = msgspec.to_builtins(LIVE)
    if name in rivals and suffix != "gate":
        knows = msgspec.to_builtins(UNLEARNED)
    for key, value in _values(query, where).items():
        if key.startswith(_KNOWS):
            knows[key.removeprefix(_KNOWS)] = value
        elif key.startswith(_SCHEDULING):
            scheduling = _changed(scheduling, key.removeprefix(_SCHEDULING), value, where)
        else:
            params[key] = value
    return Arm(
        text,
        policy_type,
        convert(params, policy_type.params_type, where),
        scheduling,
        convert(knows, Knowledge, where),
    )


def _values(query: str, where: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
        return {key: yaml.safe_load(value) for key, value in pairs}
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: {error}") from None


def _changed(scheduling: Scheduling, key: str, value: object, where: str) -> Scheduling:
    tree = msgspec.to_builtins(scheduling)
    *sections, last = key.split(".")
    place = tree
    for section in sections:
        place = place.get(section)
        if not isinstance(place, dict):
            raise ConfigError(f"{where}: there is no setting scheduling.{key}")
    place[last] = value
    return convert(tree, Scheduling, where)


def _rivals() -> Mapping[str, type[Policy]]:
    from loadtests.rivals.registry import RIVALS

    return RIVALS
