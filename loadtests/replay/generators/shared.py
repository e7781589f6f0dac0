"""Many questions to the same assistants."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from gateway.config import Count, Section
from loadtests.replay.generators.draw import Zipf, around, poisson
from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.generators.session import Session, Turn
from loadtests.sim.profile import Positive


class Shared(Section, frozen=True):
    """Single questions, nearly all of which open with the same long instructions."""

    rate: Positive = 32.0
    """Requests per second."""
    seconds: Positive = 900.0
    systems: Count = 20
    """Instructions; the k-th is used 1/k**skew as often as the first."""
    skew: Annotated[float, Meta(ge=0)] = 1.5
    system_tokens: Count = 6000
    """Median of their lengths."""
    message_tokens: Count = 400
    """Median."""
    output_tokens: Count = 150
    """Median."""

    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        systems = [
            Prompt().then(around(dice, self.system_tokens, 0.5, 30_000), fresh)
            for _ in range(self.systems)
        ]
        which = Zipf(self.systems, self.skew)
        for start in poisson(dice, self.rate, 0.0, self.seconds):
            prompt = systems[which.draw(dice)]
            prompt = prompt.then(around(dice, self.message_tokens, 1.0, 20_000), fresh)
            output = around(dice, self.output_tokens, 0.8, 1500)
            yield Session(start, [Turn(0.0, prompt, output)])
