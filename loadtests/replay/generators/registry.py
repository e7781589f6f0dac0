"""Generators by name."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Protocol
from urllib.parse import parse_qsl

import msgspec

from gateway.config import ConfigError
from loadtests.replay.generators.agents import Agents
from loadtests.replay.generators.bursts import Bursts
from loadtests.replay.generators.chat import Chat
from loadtests.replay.generators.documents import Documents
from loadtests.replay.generators.mix import Mix
from loadtests.replay.generators.prompt import BLOCK_TOKENS
from loadtests.replay.generators.session import Session, requests
from loadtests.replay.generators.shared import Shared
from loadtests.replay.trace import Trace

PREFIX = "gen:"

GENERATORS: Mapping[str, type[Agents | Bursts | Chat | Documents | Mix | Shared]] = {
    "agents": Agents,
    "bursts": Bursts,
    "chat": Chat,
    "documents": Documents,
    "mix": Mix,
    "shared": Shared,
}


class Generator(Protocol):
    """Parameters, and what is made of them; the same for the same dice."""

    @property
    def seconds(self) -> float: ...
    def sessions(self, dice: random.Random, fresh: Iterator[int]) -> Iterator[Session]:
        """
        Args:
            fresh: numbers for blocks that no other prompt has.
        """


def find(text: str) -> Callable[[int], Trace]:
    """A generator as `gen:NAME?param=value&...`; `seed` there is a parameter of all.

    Raises:
        ConfigError: the name or a parameter is unknown, or a value is not allowed.
    """
    name, _, query = text.removeprefix(PREFIX).partition("?")
    if name not in GENERATORS:
        raise ConfigError(f"{text}: unknown generator, expected one of {', '.join(GENERATORS)}")
    try:
        values = dict(parse_qsl(query, strict_parsing=True)) if query else {}
        base = int(values.pop("seed", "0"))
        generator = msgspec.convert(values, GENERATORS[name], strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{text}: {error}") from None
    return partial(_trace, text, name, generator, base)


def _trace(text: str, name: str, generator: Generator, base: int, seed: int) -> Trace:
    dice = random.Random(f"{name}:{base}:{seed}")
    made = requests(generator.sessions(dice, count()), generator.seconds)
    digest = hashlib.sha256()
    for request in made:
        digest.update(repr(request).encode())
    return Trace(text, made, digest.hexdigest(), BLOCK_TOKENS)
