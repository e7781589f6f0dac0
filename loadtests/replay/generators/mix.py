"""All kinds of traffic on one fleet."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gateway.config import Section, Share
from loadtests.replay.generators.agents import Agents
from loadtests.replay.generators.chat import Chat
from loadtests.replay.generators.documents import Documents
from loadtests.replay.generators.session import Session
from loadtests.sim.profile import Positive


class Mix(Section, frozen=True):
    """Agents' calls and tasks, conversations, and questions about documents, each as its own
    generator makes them."""

    rate: Positive = 8.0
    """Requests per second."""
    seconds: Positive = 1800.0
    agents_share: Share = 0.5
    documents_share: Share = 0.1
    """Conversations are the rest."""

    def __post_init__(self) -> None:
        if self.agents_share + self.documents_share > 1:
            raise ValueError("agents_share and documents_share are more than 1 together")

    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        chat_share = 1 - self.agents_share - self.documents_share
        if chat_share > 0:
            yield from Chat(rate=self.rate * chat_share, seconds=self.seconds).sessions(dice, fresh)
        if self.agents_share:
            rate = self.rate * self.agents_share
            yield from Agents(rate=rate, seconds=self.seconds).sessions(dice, fresh)
        if self.documents_share:
            rate = self.rate * self.documents_share
            yield from Documents(rate=rate, seconds=self.seconds).sessions(dice, fresh)
