"""Seeded traffic: who asks what, when. The same `Mix` and seed give the same sessions anywhere.

Three kinds of sessions, because a prefix is shared in three ways:

- *chat*: several turns that build on one another over one of a few system prompts. A turn is sent
  when the answer before it has been read (`Turn.think` seconds after it ended), with the engine's
  own answers in the history, so turn k + 1 begins with all of turn k.
- *document*: one long text, asked about several times by people who do not wait for each other.
  Each question is a session of one turn; what a document's sessions share is the document.
- *one-off*: a short prompt that shares its system prompt with others and nothing else.

Shapes: arrivals are uniform over a window, which is a Poisson process seen afterwards; sizes are
log-uniform (many small, few large); turns and questions are uniform; think time and the gaps
between questions are shifted exponentials, cut at three times their mean. Every session draws from
a generator of its own, seeded by its name, so that changing one part of a mix leaves the rest as
it was. One token is four bytes of ASCII text, the simulated engine's own rule.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

TOKEN_BYTES = 4

Span = tuple[int, int]
"""Smallest and largest value, both included."""


class Kind(StrEnum):
    CHAT = "chat"
    DOCUMENT = "document"
    ONE_OFF = "one-off"


@dataclass(slots=True, frozen=True)
class Turn:
    """One request of a session.

    Attributes:
        text: what the user says.
        max_tokens: cap of the answer.
        think: float = 2.4
    """

    text: str
    max_tokens: int
    think: float = 0.0


@dataclass(slots=True, frozen=True)
class Session:
    """Turns that one client sends one after the other.

    Attributes:
        name: unique in its workload; a document's sessions are `document-N/K`.
        arrival: seconds from the start of the run to the first turn.
        system: the system prompt.
    """

    name: str
    kind: Kind
    arrival: float
    system: str
    turns: tuple[Turn, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class Mix:
    """How much of each kind, and of what size. Sizes in tokens, times in seconds."""

    chats: int
    documents: int
    one_offs: int
    arrivals: float
    """Window over which chats, documents and one-offs start."""
    system_prompts: int = 4
    system_tokens: Span = (60, 100)
    opening_tokens: Span = (400, 2000)
    """A chat's first message: often with something pasted into it."""
    turn_tokens: Span = (20, 200)
    chat_turns: Span = (4, 5)
    think: float = 2.5
    document_tokens: Span = (3000, 7000)
    questions: Span = (4, 5)
    question_tokens: Span = (15, 60)
    question_gap: float = 4.0
    one_off_tokens: Span = (20, 400)
    answer_tokens: Span = (20, 120)


def generate(mix: Mix, seed: int) -> list[Session]:
    """The sessions of a mix, by arrival."""
    source = _Source(seed)
    rng = source.rng("systems")
    systems = [
        source.text(rng, _between(rng, mix.system_tokens)) for _ in range(mix.system_prompts)
    ]
    sessions = [
        *(_chat(mix, source, systems, number) for number in range(mix.chats)),
        *(ask for number in range(mix.documents) for ask in _asks(mix, source, systems, number)),
        *(_one_off(mix, source, systems, number) for number in range(mix.one_offs)),
    ]
    return sorted(sessions, key=lambda session: (session.arrival, session.name))


def requests(sessions: list[Session]) -> int:
    return sum(len(session.turns) for session in sessions)


class _Source:
    """Generators and words that depend on the workload's seed alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = self.rng("words")
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(4000)]

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def text(self, rng: random.Random, tokens: int) -> str:
        """Text of exactly this many tokens."""
        size = tokens * TOKEN_BYTES
        shortest = 2 + len(" ")
        return " ".join(rng.choices(self._words, k=size // shortest + 1))[:size]


def _chat(mix: Mix, source: _Source, systems: list[str], number: int) -> Session:
    name = f"chat-{number}"
    rng = source.rng(name)
    turns = []
    for turn in range(rng.randint(*mix.chat_turns)):
        tokens = _between(rng, mix.turn_tokens if turn else mix.opening_tokens)
        think = _pause(rng, mix.think) if turn else 0.0
        turns.append(Turn(source.text(rng, tokens), _between(rng, mix.answer_tokens), think))
    arrival = rng.uniform(0, mix.arrivals)
    return Session(name, Kind.CHAT, arrival, rng.choice(systems), tuple(turns))


def _asks(mix: Mix, source: _Source, systems: list[str], number: int) -> Iterator[Session]:
    name = f"document-{number}"
    rng = source.rng(name)
    document = source.text(rng, _between(rng, mix.document_tokens))
    system = rng.choice(systems)
    arrival = rng.uniform(0, mix.arrivals)
    for ask in range(rng.randint(*mix.questions)):
        question = source.text(rng, _between(rng, mix.question_tokens))
        turn = Turn(f"{document}\n\n{question}", _between(rng, mix.answer_tokens))
        yield Session(f"{name}/{ask}", Kind.DOCUMENT, arrival, system, (turn,))
        arrival += _pause(rng, mix.question_gap)


def _one_off(mix: Mix, source: _Source, systems: list[str], number: int) -> Session:
    name = f"one-off-{number}"
    rng = source.rng(name)
    text = source.text(rng, _between(rng, mix.one_off_tokens))
    turn = Turn(text, _between(rng, mix.answer_tokens))
    return Session(name, Kind.ONE_OFF, rng.uniform(0, mix.arrivals), rng.choice(systems), (turn,))


def _between(rng: random.Random, span: Span) -> int:
    """Log-uniform."""
    low, high = span
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _pause(rng: random.Random, mean: float) -> float:
    """Half of the mean for certain, the rest exponential; at most three times the mean."""
    return min(mean / 2 + rng.expovariate(2 / mean), 3 * mean)
