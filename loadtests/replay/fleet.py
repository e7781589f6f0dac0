"""The engines of a replay, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

import msgspec

from gateway.config import ConfigError
from loadtests.replay.incidents import Incident, Kind
from loadtests.replay.trace import Trace
from loadtests.sim.engine import Engine
from loadtests.sim.profile import Profile
from loadtests.sim.timeline import Timeline


@dataclass(slots=True, frozen=True)
class SlowDown:
    """An engine becomes `factor` times slower than it was made, `seconds` after the begin, and
    tells nobody."""

    engine: int
    seconds: float
    factor: float


@dataclass(slots=True, frozen=True)
class Fleet:
    """
    Attributes:
        profile: of an engine of speed 1.
        speeds: of each engine.
    """

    profile: Profile
    speeds: tuple[float, ...]
    slow_downs: tuple[SlowDown, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """In order of time."""

    def check(self, trace: Trace) -> None:
        """Raises:
        ConfigError: an engine could never serve some request.
        """
        most = self.profile.usable_blocks * self.profile.block_size
        for request in trace.requests:
            tokens = request.input_tokens + request.output_tokens
            if tokens > most:
                raise ConfigError(
                    f"{trace.name}: the request at {request.arrival:.3f} s has {tokens} tokens,"
                    f" an engine has room for {most}"
                )

    @property
    def cache_tokens(self) -> int:
        """Of all engines together."""
        return len(self.speeds) * self.profile.num_blocks * self.profile.block_size

    def engines(self, timeline: Timeline, unit_tokens: int) -> list[Engine]:
        """Empty engines that run on `timeline`.

        Raises:
            ConfigError: units are not whole blocks of the profile.
        """
        profile = self.profile
        if unit_tokens % profile.block_size:
            raise ConfigError(
                f"engine profile: block_size {profile.block_size} does not divide the trace's"
                f" blocks of {unit_tokens} tokens"
            )
        engines = [self.engine(place, timeline, unit_tokens) for place in range(len(self.speeds))]
        for slow in self.slow_downs:
            timing = profile.timing.faster(self.speeds[slow.engine] / slow.factor)
            timeline.call_at(slow.seconds, partial(engines[slow.engine].set_timing, timing))
        return engines

    def engine(self, place: int, timeline: Timeline, unit_tokens: int) -> Engine:
        """One of them, as it is when it starts."""
        timing = self.profile.timing.faster(self.speeds[place])
        profile = msgspec.structs.replace(self.profile, timing=timing)
        return Engine(profile, timeline, unit_tokens=unit_tokens)

    @property
    def absent(self) -> set[int]:
        """Places of the engines that are not there at the begin."""
        first: dict[int, Kind] = {}
        for incident in self.incidents:
            first.setdefault(incident.engine, incident.kind)
        return {place for place, kind in first.items() if kind is Kind.JOIN}


def cold_seconds(profile: Profile, input_tokens: int) -> float:
    """A prompt's prefill alone on an idle engine with nothing cached."""
    timing = profile.timing
    steps = ceil(input_tokens / profile.max_num_batched_tokens)
    return timing.base * steps + timing.prefill(0, input_tokens)
