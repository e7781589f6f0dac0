"""Why requests are prefilled where they are. Also metric labels, so the sets are closed; why a
protocol does not carry one is in `gateway.disagg.refusal`."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    WORTH = "worth"
    """What the decode engine lacks of the prompt is worth a handover."""
    NEEDED = "needed"
    """The decode engine serves nothing that was not prefilled elsewhere."""
    SHORT = "short"
    """What it lacks is not."""
    NO_PREFILL = "no_prefill"
    """No prefill engine is there to take it."""
    ROUTE = "route"
    """Requests of this route are not handed over."""
    SOONER = "sooner"
    """One engine serves it sooner, or at less cost to others."""
    HOSTED = "hosted"
    """A prefill engine serves all of it: that is sooner, or nobody else is there."""


class Fallback(StrEnum):
    """Why a request that was to be handed over is served by one engine."""

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
