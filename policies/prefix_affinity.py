"""Reuse and load in one cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import HASH_BYTES, Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.congestion import Congestion
from policies.cost import (
    decode_seconds,
    memory_seconds,
    placement_seconds,
    prefill_seconds,
    queue_seconds,
)
from policies.placements import Placements
from policies.rendezvous import highest
from policies.rotation import Rotation

TIE_SHARE = 0.02
TIE_SECONDS = 5e-3

Weight = Annotated[float, Meta(ge=0, le=100)]


class PrefixAffinityParams(Params, frozen=True):
    theta_max: Annotated[float, Meta(ge=0, le=1000)] = 64.0
    """Cap of the congestion price; 0 turns it off, which leaves the least time to first token."""
    eta: Weight = 0.1
    """Price of a second of prefill for each stream that it stalls."""
    omega: Weight = 1.0
    """Weight of decode: the request's own, and the slow-down it brings to others."""
    attention_context: Annotated[float, Meta(ge=1000)] = 30_000.0
    """Tokens of context at which a prompt token takes twice as long to prefill as the first."""


class PrefixAffinity:
    """Sends a request where it costs least, in seconds, counting what is cached there.

    What. For each candidate five terms are added up, and the lowest sum wins:

    - queue: prefill work that is pending there
    - prefill: the request's own, for the tokens that are not cached there
    - price: that prefill again, times (theta + eta * streams decoding there). theta is a
      congestion price: near 0 when the pool is idle, it grows with utilisation and queues, so
      that the policy moves by itself from "answer soonest" to "save work"
    - decode: omega * (the request's own decode + the slow-down of the streams there)
    - memory: steep from 95% of the KV cache on

    Ties. Sums within 2% or 5 ms of the lowest are as good as equal. Of those, the backends that
    hold most of the prompt win; of several that hold equally much, the one that the hash of the
    session key falls to, or else of the prompt's last whole block: conversations that share only a
    system prompt spread over the backends that hold it, and gateway replicas agree. A backend that
    lately got more of such conversations than the others is passed over. When nothing is cached
    anywhere the lowest sum wins as it is, which is the least loaded backend, and the hash decides
    between equals. A request with neither session nor whole block takes turns.

    Inputs. Matched tokens, prompt tokens, expected output tokens; of each candidate pending and
    context tokens, requests in flight and decoding, capacity, prefill and decode rates.

    Parameters. See `PrefixAffinityParams`; theta_max, eta and omega at 0 make it the plain least
    time to first token.

    Example. A 6,000-token conversation of which A holds 5,500 tokens while B is idle: A costs
    0.06 s of prefill against 0.66 s on B, so it stays on A until A's queue exceeds B's by the
    difference, 0.6 s in an idle pool and several times that in a busy one.

    Trade-offs. It needs roughly right rates: a prefill rate that is too high makes reuse look
    cheap to give up, one too low makes it hold on too long. Pending work does not shrink while a
    prefill runs, so one long prefill looks as long at its end as at its start.
    """

    name: ClassVar[str] = "prefix_affinity"
    params_type: ClassVar[type[Params]] = PrefixAffinityParams

    def __init__(self, params: PrefixAffinityParams) -> None:
        self._params = params
        self._congestion: dict[str, Congestion] = {}
        self._placements = Placements()
        self._rotation = Rotation()

    @property
    def params(self) -> PrefixAffinityParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        congestion = self._congestion.get(request.model)
        if congestion is None:
            congestion = self._congestion[request.model] = Congestion()
        costs = self._costs(request, candidates, self._theta(request, candidates, congestion))
        chosen = self._cheapest(request, candidates, costs)
        congestion.add(request.now, self._own_prefill(request, chosen))
        return Decision(chosen.id, _reason(request, candidates, chosen), tuple(costs))

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        congestion = self._congestion.get(request.model, Congestion())
        theta = self._theta(request, candidates, congestion)
        return list(self._terms(request, candidates, theta))

    def _theta(
        self, request: RouteRequest, candidates: Sequence[Candidate], congestion: Congestion
    ) -> float:
        # Full backends are no candidates, so a pool that is nearly full looks busier than it is;
        # it is busy enough for the price to be high either way.
        queued = 0.0
        for candidate in candidates:
            queued += candidate.pending_tokens / candidate.prefill_rate
        count = len(candidates)
        price = congestion.price(request.now, count, queued / count)
        most = self._params.theta_max
        return price if price < most else most

    def _own_prefill(self, request: RouteRequest, candidate: Candidate) -> float:
        matched = request.match.tokens.get(candidate.id, 0.0)
        return prefill_seconds(
            candidate, request.prompt_tokens, matched, self._params.attention_context
        )

    def _costs(
        self, request: RouteRequest, candidates: Sequence[Candidate], theta: float
    ) -> list[float]:
        """The sum of `_terms` for each candidate."""
        params = self._params
        return placement_seconds(
            request, candidates, theta, params.eta, params.omega, params.attention_context
        )

    def _terms(
        self, request: RouteRequest, candidates: Sequence[Candidate], theta: float
    ) -> Iterator[dict[str, float]]:
        params = self._params
        costs = self._costs(request, candidates, theta)
        for candidate, total in zip(candidates, costs, strict=True):
            own = self._own_prefill(request, candidate)
            yield {
                "matched_tokens": request.match.tokens.get(candidate.id, 0.0),
                "queue": queue_seconds(candidate),
                "prefill": own,
                "price": own * (theta + params.eta * candidate.decoding),
                "decode": params.omega
                * decode_seconds(candidate, request.output_tokens, request.prompt_tokens),
                "memory": memory_seconds(candidate, request.prompt_tokens),
                "total": total,
            }

    def _cheapest(
        self, request: RouteRequest, candidates: Sequence[Candidate], costs: list[float]
    ) -> Candidate:
        lowest = min(costs)
        held = request.match.blocks
        bound = lowest + max(TIE_SHARE * lowest, TIE_SECONDS) if held else lowest
        tied = [candidates[place] for place, cost in enumerate(costs) if cost <= bound]
        if len(tied) > 1 and held:
            blocks = [held.get(candidate.id, 0) for candidate in tied]
            most = max(blocks)
            tied = [tied[place] for place, count in enumerate(blocks) if count == most]
        if len(tied) == 1:
            return tied[0]
        if request.session:
            return highest(request.session.encode(), tied)
        if request.chain:
            anchor, weight = request.chain[-HASH_BYTES:], float(request.prompt_tokens)
            return self._placements.place(anchor, tied, request.now, weight)
        return self._rotation.next(request.model, tied)


def _reason(request: RouteRequest, candidates: Sequence[Candidate], chosen: Candidate) -> Reason:
    if len(candidates) == 1:
        return Reason.ONLY
    held = request.match.blocks
    if not held:
        return Reason.LOAD
    return Reason.PREFIX if held.get(chosen.id, 0) >= max(held.values()) else Reason.SPILL
