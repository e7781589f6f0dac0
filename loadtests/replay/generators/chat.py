"""People who talk with assistants."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gateway.config import Count, Section
from loadtests.replay.generators.draw import Zipf, around, poisson, tries
from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.generators.session import HISTORY, Session, Turn
from loadtests.sim.profile import Positive


class Chat(Section, frozen=True):
    """Conversations that open with one of some system prompts, and in which each turn sends all
    the turns before it again."""

    rate: Positive = 9.0
    """Requests per second."""
    seconds: Positive = 1800.0
    systems: Count = 8
    """System prompts; the k-th is used 1/k as often as the first."""
    system_tokens: Count = 1500
    """Median of their lengths."""
    opening_tokens: Count = 1200
    """Median of the first message; one in a dozen is ten times as long or more."""
    message_tokens: Count = 150
    """Median of the later ones."""
    output_tokens: Count = 300
    """Median."""
    turns: Positive = 5.0
    """Mean."""
    think: Positive = 60.0
    """Seconds, median."""
    tenants: Count = 1
    """Who the conversations belong to; the k-th has 1/k as many as the first."""

    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        systems = [
            Prompt().then(around(dice, self.system_tokens, 0.8, 8000), fresh)
            for _ in range(self.systems)
        ]
        which, owner = Zipf(self.systems, 1.0), Zipf(self.tenants, 1.0)
        for start in poisson(dice, self.rate / self.turns, -HISTORY, self.seconds):
            prompt = systems[which.draw(dice)]
            turns: list[Turn] = []
            for _ in range(tries(dice, self.turns)):
                think = around(dice, self.think, 1.0, 3600) if turns else 0
                if turns:
                    prompt = prompt.then(turns[-1].output_tokens, fresh)
                    prompt = prompt.then(around(dice, self.message_tokens, 1.2, 20_000), fresh)
                else:
                    prompt = prompt.then(around(dice, self.opening_tokens, 1.7, 60_000), fresh)
                turns.append(Turn(think, prompt, around(dice, self.output_tokens, 0.8, 2000)))
            tenant = f"tenant-{owner.draw(dice)}" if self.tenants > 1 else ""
            yield Session(start, turns, tenant)
