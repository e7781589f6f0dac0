"""People who ask several things about a long document."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gateway.config import Count, Section, Share
from loadtests.replay.generators.draw import Zipf, around, poisson, tries
from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.generators.session import HISTORY, Session, Turn
from loadtests.sim.profile import Positive


class Documents(Section, frozen=True):
    """Each question sends the document again and nothing of the questions before it. Most documents
    are somebody's own; some are read by many."""

    rate: Positive = 4.0
    """Requests per second."""
    seconds: Positive = 1800.0
    document_tokens: Count = 12_000
    """Median."""
    questions: Positive = 5.0
    """Mean number a reader asks."""
    question_tokens: Count = 80
    """Median."""
    output_tokens: Count = 150
    """Median."""
    think: Positive = 45.0
    """Seconds, median."""
    library: Count = 100
    """Documents that many read; the k-th is read 1/k as often as the first."""
    library_share: Share = 0.3
    """Of the readers, those who read one of them."""

    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        library = [self._document(dice, fresh) for _ in range(self.library)]
        which = Zipf(self.library, 1.0)
        for start in poisson(dice, self.rate / self.questions, -HISTORY, self.seconds):
            if dice.random() < self.library_share:
                document = library[which.draw(dice)]
            else:
                document = self._document(dice, fresh)
            turns = []
            for index in range(tries(dice, self.questions)):
                think = around(dice, self.think, 1.0, 3600) if index else 0
                prompt = document.then(around(dice, self.question_tokens, 0.8, 2000), fresh)
                turns.append(Turn(think, prompt, around(dice, self.output_tokens, 0.8, 1500)))
            yield Session(start, turns)

    def _document(self, dice: random.Random, fresh: Iterator[int]) -> Prompt:
        return Prompt().then(around(dice, self.document_tokens, 0.9, 110_000), fresh)
