"""What placing has to know of engines besides what any policy sees of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.disagg.links import Links
from gateway.types import Role
from policies.base import Candidate, RouteRequest

TransferSeconds = Callable[[str, str, float, float], float]
"""As `Links.seconds`: of prefill engine, decode engine, tokens and seconds of prefill."""


class Engines(Protocol):
    @property
    def pace(self) -> float | None:
        """Seconds per output token that answers are to keep to; None when any will do."""

    def role(self, id: str) -> Role: ...

    def serves_alone(self, id: str) -> bool:
        """Whether an engine may be sent requests that are not handed over."""

    def paired(self, prefill: str, decode: str, model: str) -> bool:
        """Whether a model's caches can be handed over from one engine to another now.

        Args:
            model: as clients have it.
        """

    def overlaps(self, decode: str) -> bool:
        """Whether an engine is sent what is computed for it while the prefill goes on."""

    def landings(self, request: RouteRequest) -> Sequence[Candidate]:
        """The engines that generate from what others have computed, and have room for one more
        answer."""

    def links(self, model: str) -> Links:
        """The network, for one model's caches."""


def transfers(engines: Engines, model: str) -> TransferSeconds:
    """How long what engines lack of a prompt is under way after its prefill."""
    links = engines.links(model)

    def seconds(prefill: str, decode: str, tokens: float, during: float) -> float:
        overlaps = during > 0.0 and engines.overlaps(decode)
        return links.seconds(prefill, decode, tokens, during if overlaps else 0.0)

    return seconds
