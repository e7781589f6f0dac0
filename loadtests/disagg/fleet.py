"""Engines with roles."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gateway.types import Role
from loadtests.replay.fleet import Fleet
from loadtests.sim.engine import Engine
from loadtests.sim.timeline import Timeline

PREFILL_CHUNK = 8192
"""Token budget of a prefill engine's step: nobody decodes beside it."""


@dataclass(slots=True, frozen=True)
class RoleFleet(Fleet):
    """
    Attributes:
        roles: of each engine.
        chunk: token budget of a step of those that decode.
    """

    roles: tuple[Role, ...] = ()
    chunk: int = 512

    def engine(self, place: int, timeline: Timeline, unit_tokens: int) -> Engine:
        prefills = self.roles[place] is Role.PREFILL
        chunk = PREFILL_CHUNK if prefills else self.chunk
        profile = msgspec.structs.replace(
            self.profile,
            timing=self.profile.timing.faster(self.speeds[place]),
            max_num_batched_tokens=chunk,
        )
        return Engine(profile, timeline, unit_tokens=unit_tokens)


def ratio(prefill: int, engines: int) -> tuple[Role, ...]:
    """So many prefill engines, the others decode; 0 makes all of them unified."""
    if not prefill:
        return (Role.UNIFIED,) * engines
    return (Role.PREFILL,) * prefill + (Role.DECODE,) * (engines - prefill)
