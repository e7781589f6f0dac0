"""The engines and the load of a comparison, the same for both ways of playing it."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.replay.fleet import Fleet
from loadtests.sim import profile as profiles
from loadtests.sim.profile import Profile

GENERATED = "gen:shared?rate=9&seconds=600&systems=40&skew=0.5&message_tokens=300&output_tokens=50"
"""Short questions after long instructions, of which one engine's cache holds half."""
POLICIES = ("prefix_affinity", "least_load", "round_robin")


@dataclass(slots=True, frozen=True)
class Setup:
    """
    Attributes:
        speed: how many times as fast as their profile the engines are.
        kv_tokens: cache of each.
    """

    engines: int = 3
    speed: float = 2.0
    kv_tokens: int = 131_072

    @property
    def profile(self) -> Profile:
        """Of an engine of speed 1."""
        profile = profiles.load(profiles.DEFAULT)
        longest = min(profile.max_model_len, self.kv_tokens)
        return profile.replace(kv_tokens=self.kv_tokens, max_model_len=longest)

    @property
    def fleet(self) -> Fleet:
        return Fleet(self.profile, (self.speed,) * self.engines)

    @property
    def engine_options(self) -> list[str]:
        """For the command that runs a simulated engine."""
        profile = self.profile
        return [
            f"--speed={self.speed}",
            f"--kv-tokens={profile.kv_tokens}",
            f"--max-model-len={profile.max_model_len}",
        ]
