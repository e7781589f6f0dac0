"""Programs that call a model in a loop."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gateway.config import Count, Section, Share
from loadtests.replay.generators.draw import Zipf, around, poisson, tries
from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.generators.session import HISTORY, Session, Turn
from loadtests.sim.profile import Positive


class Agents(Section, frozen=True):
    """Two kinds: small calls that share a long description of tools and answer in a few tokens,
    and tasks whose history grows with every step."""

    rate: Positive = 10.0
    """Requests per second."""
    seconds: Positive = 1800.0
    call_share: Share = 0.4
    """Of the requests, the small calls."""
    tools: Count = 2
    """Descriptions of tools; the k-th is used 1/k**2 as often as the first."""
    tool_tokens: Count = 6144
    """Length of each."""
    call_tokens: Count = 600
    """Median of what a call adds."""
    call_output_tokens: Count = 12
    """Median; from 3 to 80."""
    task_tokens: Count = 4000
    """Median of what a task begins with."""
    steps: Positive = 15.0
    """Mean number of a task's steps."""
    step_tokens: Count = 500
    """Median of what each adds beside its answer: what tools returned."""
    output_tokens: Count = 120
    """Median of a step's answer."""
    think: Positive = 4.0
    """Seconds, median: how long tools run."""

    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        tools = [Prompt().then(self.tool_tokens, fresh) for _ in range(self.tools)]
        which = Zipf(self.tools, 2.0)
        calls = self.rate * self.call_share
        if calls:
            for start in poisson(dice, calls, 0.0, self.seconds):
                yield Session(start, [self._call(tools[which.draw(dice)], dice, fresh)])
        tasks = (self.rate - calls) / self.steps
        if tasks:
            for start in poisson(dice, tasks, -HISTORY, self.seconds):
                yield Session(start, self._task(dice, fresh))

    def _call(self, tool: Prompt, dice: random.Random, fresh: Iterator[int]) -> Turn:
        prompt = tool.then(around(dice, self.call_tokens, 0.8, 4000), fresh)
        output = max(3, around(dice, self.call_output_tokens, 1.0, 80))
        return Turn(0.0, prompt, output, max_tokens=128)

    def _task(self, dice: random.Random, fresh: Iterator[int]) -> list[Turn]:
        prompt = Prompt().then(around(dice, self.task_tokens, 0.8, 40_000), fresh)
        turns: list[Turn] = []
        for _ in range(tries(dice, self.steps)):
            think = around(dice, self.think, 1.2, 600) if turns else 0
            output = around(dice, self.output_tokens, 0.9, 2000)
            turns.append(Turn(think, prompt, output))
            added = output + around(dice, self.step_tokens, 1.3, 20_000)
            if prompt.tokens + added > 120_000:
                break
            prompt = prompt.then(added, fresh)
        return turns
