"""What a simulated prefill engine has computed for other engines, who ask for it over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from loadtests.sim.calls import ApiError
from loadtests.sim.engine import Engine
from loadtests.sim.legs import Json, Leg
from loadtests.sim.sequence import Sequence

REMEMBERED = 10_000
"""Handovers that are over and still known, so that a second use of their keys is noticed."""


class Offer:
    """The blocks of one prompt.

    Attributes:
        prompt: digest of what they are the cache of.
        ready: set when they are computed.
    """

    __slots__ = ("given", "prompt", "ready", "seconds", "sequence", "used")

    def __init__(self, given: Json, prompt: str) -> None:
        self.given = given
        self.prompt = prompt
        self.ready = asyncio.Event()
        self.sequence: Sequence | None = None
        self.seconds = 0.0
        self.used = False


@dataclass(slots=True)
class Offers:
    """
    Attributes:
        patience: seconds that an engine which asks early waits for a prompt to be computed.
    """

    engine: Engine
    patience: float
    _offers: dict[str, Offer] = field(default_factory=dict)
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def announce(self, leg: Leg, prompt: str) -> Offer:
        """A prompt is going to be computed.

        Raises:
            ApiError: what it is to be kept under was used before.
        """
        if leg.key in self._offers:
            raise ApiError(f"{leg.key} was used before", status=500, param=None)
        if len(self._offers) >= REMEMBERED:
            del self._offers[next(iter(self._offers))]
        offer = self._offers[leg.key] = Offer(leg.given, prompt)
        async with self._arrived:
            self._arrived.notify_all()
        return offer

    def computed(self, offer: Offer, sequence: Sequence, now: float) -> None:
        offer.sequence = sequence
        offer.seconds = now - (now if sequence.admitted is None else sequence.admitted)
        offer.ready.set()

    async def read(self, key: str, prompt: str, shown: Json) -> dict[str, Any]:
        """Let another engine begin to read.

        Returns:
            `tokens`, and the `seconds` that computing them took.

        Raises:
            ApiError: nothing like that is to be had (any more).
        """
        try:
            async with asyncio.timeout(self.patience):
                async with self._arrived:
                    await self._arrived.wait_for(lambda: key in self._offers)
                offer = self._offers[key]
                await offer.ready.wait()
        except TimeoutError:
            raise ApiError(f"nothing came under {key}", status=404, param=None) from None
        wrong = [name for name in offer.given if shown.get(name) != offer.given[name]]
        if wrong or prompt != offer.prompt:
            what = ", ".join(wrong) or "the prompt"
            raise ApiError(f"{what} is not as it was given out", status=409, param=None)
        sequence = offer.sequence
        assert sequence is not None
        if offer.used or not self.engine.keeps(sequence):
            why = "read before" if offer.used else "kept for too long"
            raise ApiError(f"{key} was {why}", status=410, param=None)
        offer.used = True
        return {"tokens": sequence.request.input_tokens, "seconds": offer.seconds}

    def let_go(self, key: str) -> bool:
        """Nobody reads any more.

        Returns:
            False when nothing was kept.
        """
        offer = self._offers.get(key)
        if offer is None or offer.sequence is None:
            return False
        offer.used = True
        return self.engine.fetched(offer.sequence)
