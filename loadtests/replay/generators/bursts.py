"""Short requests that come in crowds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import exp

from gateway.config import Count, Section, Share
from loadtests.replay.generators.draw import Zipf, around, poisson
from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.generators.session import Session, Turn
from loadtests.sim.profile import Positive


class Bursts(Section, frozen=True):
    """Code completion and batch jobs: between quiet spells many requests come within a few
    seconds, and those of one crowd share more than the project's prompt."""

    rate: Positive = 5.0
    """Requests per second, mean."""
    seconds: Positive = 1800.0
    burst_share: Share = 0.95
    """Of the requests, those that come in crowds; the others come one by one."""
    burst_requests: Count = 60
    """Median size of a crowd."""
    burst_seconds: Positive = 5.0
    """In which a crowd comes."""
    projects: Count = 12
    """Prompts shared; the k-th is used 1/k as often as the first."""
    project_tokens: Count = 1024
    """Median."""
    context_tokens: Count = 1500
    """Median of what a crowd shares beyond that."""
    message_tokens: Count = 400
    """Median of what each request has of its own."""
    output_tokens: Count = 40
    """Median."""

    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        projects = [
            Prompt().then(around(dice, self.project_tokens, 0.6, 8000), fresh)
            for _ in range(self.projects)
        ]
        which = Zipf(self.projects, 1.0)
        crowded = self.rate * self.burst_share
        sigma = 0.8
        if crowded:
            mean = self.burst_requests * exp(sigma * sigma / 2)
            for start in poisson(dice, crowded / mean, 0.0, self.seconds):
                shared = projects[which.draw(dice)]
                shared = shared.then(around(dice, self.context_tokens, 1.0, 20_000), fresh)
                for _ in range(around(dice, self.burst_requests, sigma, 5000)):
                    at = start + dice.random() * self.burst_seconds
                    yield Session(at, [self._turn(shared, dice, fresh)])
        if crowded < self.rate:
            for start in poisson(dice, self.rate - crowded, 0.0, self.seconds):
                yield Session(start, [self._turn(projects[which.draw(dice)], dice, fresh)])

    def _turn(self, shared: Prompt, dice: random.Random, fresh: Iterator[int]) -> Turn:
        prompt = shared.then(around(dice, self.message_tokens, 0.9, 8000), fresh)
        return Turn(0.0, prompt, around(dice, self.output_tokens, 1.0, 500))
