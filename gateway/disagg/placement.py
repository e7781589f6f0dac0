"""Whether a request is prefilled where it decodes, or elsewhere, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from gateway.scheduling.cached import uncached_tokens
from gateway.scheduling.load import BackendLoad
from policies.base import RouteRequest
from policies.cost import prefill_seconds

LEAST_UNCACHED = 2048
"""Tokens: what takes a prefill engine 0.2 s, and the KV cache of which crosses a 10 Gbit/s link in
as much."""


class Why(StrEnum):
    """Also a metric label, so the set is closed; why a connector refuses one is in `Refusal`."""

    WORTH = "worth"
    """What the decode engine lacks of the prompt is worth a handover."""
    NEEDED = "needed"
    """The decode engine serves nothing that was not prefilled elsewhere."""
    SHORT = "short"
    """What it lacks is not."""
    NO_PREFILL = "no_prefill"
    """What it lacks is worth one, but no prefill engine is there to take it."""
    ROUTE = "route"
    """Requests of this route are not handed over."""


class Fallback(StrEnum):
    """Why a request that was to be handed over is served by one engine; a metric label."""

    NO_PREFILL = "no_prefill"
    """No prefill engine takes requests now."""
    UNPAIRED = "unpaired"
    """None of them can be paired with the decode engine."""
    FULL = "full"
    """None of those has room."""
    BUSY = "busy"
    """The prefill engine had too much to do."""
    REFUSED = "refused"
    """It answered that it will not, or failed."""
    BROKEN = "broken"
    """It could not be reached, or its answer broke off."""
    SLOW = "slow"
    """It took several times as long as it should."""
    NO_TRANSFER = "no_transfer"
    """Its answer gives the decode engine nothing to fetch."""
    EXPIRED = "expired"
    """What it had computed would have been fetched too late."""
    DECODE = "decode"
    """The decode engine failed on what was handed over."""


class Placement(msgspec.Struct, frozen=True):
    """Attributes:
    prefill: the engine that prefills; None where the decode engine does.
    """

    prefill: BackendLoad | None
    why: str


Decide = Callable[[RouteRequest, BackendLoad, Sequence[BackendLoad]], Placement]
"""Decides on a request whose decode engine is chosen, given the prefill engines that can be paired
with it and have room. Where there is none, `NO_PREFILL` says that one was wanted."""


def by_threshold(least: int) -> Decide:
    """Remote from `least` uncached tokens at the decode engine on; 0 makes all requests remote."""

    def decide(
        request: RouteRequest, decode: BackendLoad, prefills: Sequence[BackendLoad]
    ) -> Placement:
        if uncached_tokens(request, decode.id) < least:
            return Placement(None, Why.SHORT)
        if not prefills:
            return Placement(None, Why.NO_PREFILL)
        return Placement(soonest(request, prefills), Why.WORTH)

    return decide


def soonest(request: RouteRequest, prefills: Sequence[BackendLoad]) -> BackendLoad:
    """The engine at which a prompt would be prefilled first."""

    def seconds(load: BackendLoad) -> float:
        matched = request.match.tokens.get(load.id, 0.0)
        own = prefill_seconds(load, request.prompt_tokens, matched)
        return load.queue_seconds(request) + own

    return min(prefills, key=seconds)
