"""Reuse and load in one cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import HASH_BYTES, Chain, Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.congestion import Congestion
from policies.copies import Copies
from policies.cost import (
    decode_seconds,
    memory_seconds,
    own_prefill_seconds,
    placement_seconds,
)
from policies.placed import Placed
from policies.placements import Placements
from policies.rendezvous import highest, highest_two
from policies.rotation import Rotation

_NOT_SEEN = Congestion()
"""Of models that nothing was sent to yet; never written to."""

_DECODING = attrgetter("decoding")

TIE_SHARE = 0.02
TIE_SECONDS = 5e-3

COMPANY_SECONDS = 60.0
"""For how long another replica that has placed something is reckoned with."""
WORST_OF_TWO = 2.0
"""How much dearer than the cheapest backend the better of two may be."""

Weight = Annotated[float, Meta(ge=0, le=100)]


class PrefixAffinityParams(Params, frozen=True):
    theta_max: Annotated[float, Meta(ge=0, le=1000)] = 64.0
    """Cap of the congestion price; 0 turns it off, which leaves the least time to first token."""
    eta: Weight = 0.0
    """Price of a second of prefill for each stream that decodes there, whether it can bear the
    stall or not."""
    spoil: Weight = 4.0
    """Seconds that a stream is worth which the prefill would make miss its pace."""
    omega: Weight = 0.3
    """Weight of decode: the request's own, and the slow-down it brings to others."""


class PrefixAffinity:
    """Sends a request where it costs least, in seconds, counting what is cached there.

    What. For each candidate these terms are added up, and the lowest sum wins:

    - queue: prefill work that goes first, pending there or held in the gateway
    - prefill: the request's own, for the tokens that are not cached there
    - price: that prefill again, times (theta + eta * streams decoding there). theta is a
      congestion price: near 0 when the pool is idle, it grows with utilisation and queues, so
      that the policy moves by itself from "answer soonest" to "save work". A slow backend's
      prefill is priced as if it were as fast as usual: else the fast ones draw all new work
    - streams: spoil * the streams there that the prefill would make miss their pace
    - decode: omega * (the request's own decode + the slow-down of the streams there)
    - memory: steep from 95% of the KV cache on
    - copy: what requests have lost by waiting where the prefix is, taken off where it is not (see
      `Copies`)

    For a request that is late while most of the pool is idle theta is 0: it goes where it is
    answered soonest.

    Ties. Sums within 2% or 5 ms of the lowest are as good as equal. Of those, the backends that
    hold most of the prompt win; of several that hold equally much, the one that the hash of the
    session key falls to, or else of the prompt's last whole block: conversations that share only a
    system prompt spread over the backends that hold it, and gateway replicas agree. A backend that
    lately got more of such conversations than the others is passed over. When nothing is cached
    anywhere the lowest sum wins as it is, which is the least loaded backend, and the hash decides
    between equals. A request with neither session nor whole block takes turns.

    Replicas. While other replicas of the gateway place requests too, the least loaded backend is
    not the same to all of them: each learns some milliseconds late what the others sent. So a
    prompt that is cached nowhere goes to the cheaper of the two backends that its hash falls to,
    or to the first where they are as good as equal. Replicas that place one prefix at the same
    moment then agree, and do not all send to the one backend that looks idle. Where even the
    better of the two costs twice the lowest sum, that wins.

    Inputs. Matched tokens, prompt tokens, expected output tokens; of each candidate queue, context
    and memory, requests in flight and decoding, streams and their pace, prefill and decode rates.

    Parameters. See `PrefixAffinityParams`; theta_max, eta, spoil and omega at 0 make it the plain
    least time to first token.

    Example. A 6,000-token conversation of which A holds 5,500 tokens while B is idle: A costs
    0.06 s of prefill against 0.66 s on B, so it stays on A until A's queue exceeds B's by the
    difference, 0.6 s in an idle pool and several times that in a busy one.

    Trade-offs. It needs roughly right rates: a prefill rate that is too high makes reuse look
    cheap to give up, one too low makes it hold on too long.
    """

    name: ClassVar[str] = "prefix_affinity"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = PrefixAffinityParams

    def __init__(self, params: PrefixAffinityParams) -> None:
        self._params = params
        self._congestion: dict[str, Congestion] = {}
        self._placements = Placements()
        # The last prompt that could have gone to several backends alike. Only where such prompts
        # went says who is given more than others; the others had no choice.
        self._placing: Chain = b""
        self._copies = Copies()
        # What the company at the last choice costs more than where there is least of it.
        self._waits = 0.0
        self._rotation = Rotation()
        self._placed: Placed | None = None
        self._company_until = -inf

    @property
    def params(self) -> PrefixAffinityParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        if len(candidates) == 1:
            [only] = candidates
            held = request.match.blocks
            elsewhere = bool(held) and held.get(only.id, 0) < max(held.values())
            return Decision(only.id, Reason.SPILL if elsewhere else Reason.ONLY)
        congestion = self._congestion.get(request.model, _NOT_SEEN)
        queues = _queues(request, candidates)
        theta = self._theta(request, candidates, congestion)
        costs, company = self.costs(request, candidates, queues, theta)
        self._add_spoilt(request, candidates, costs)
        credits = self._credits(request, candidates)
        if credits:
            costs = [cost - credit for cost, credit in zip(costs, credits, strict=True)]
        chosen = self._cheapest(request, candidates, costs)
        place = candidates.index(chosen)
        self._waits = company[place] - min(company)
        return Decision(chosen.id, _reason(request, place, costs, credits, chosen), tuple(costs))

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        congestion = self._congestion.get(request.model, _NOT_SEEN)
        queues = _queues(request, candidates)
        theta = self._theta(request, candidates, congestion)
        return list(self._terms(request, candidates, queues, theta))

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        prefix = longest_held(request)
        had_choice = request.chain and request.chain is self._placing
        self._placed = Placed(
            request.model,
            own_prefill_seconds(request, candidate),
            float(request.prompt_tokens) if had_choice else 0.0,
            prefix,
            self._waits if not prefix or _holds_most(request, candidate) else None,
            request.prompt_tokens,
        )
        self.learn(self._placed, candidate, request.now)

    def note(self) -> bytes:
        return b"" if self._placed is None else self._placed.encode()

    def placed_elsewhere(self, note: bytes, candidate: Candidate, now: float) -> None:
        placed = Placed.decode(note)
        if placed is None:
            return  # another policy's
        self._company_until = now + COMPANY_SECONDS
        self.learn(placed, candidate, now)

    def learn(self, placed: Placed, candidate: Candidate, now: float) -> None:
        """Take note of where a request went, from here or from another replica."""
        congestion = self._congestion.get(placed.model)
        if congestion is None:
            congestion = self._congestion[placed.model] = Congestion()
        congestion.add(now, placed.prefill)
        if placed.prefix:
            if placed.waits is None:
                self._copies.copied(placed.prefix)
            else:
                self._copies.wait(placed.prefix, now, placed.waits)
        if placed.weight:
            self._placements.note(candidate, now, placed.weight)

    def _credits(self, request: RouteRequest, candidates: Sequence[Candidate]) -> list[float]:
        """What waiting for the prompt's prefix has paid of a copy at each candidate; empty when
        that is nothing."""
        prefix = longest_held(request)
        paid = self._copies.paid(prefix, request.now) if prefix else 0.0
        if not paid:
            return []
        held = request.match.blocks
        most = max(held.values())
        return [0.0 if held.get(candidate.id) == most else paid for candidate in candidates]

    def _theta(
        self, request: RouteRequest, candidates: Sequence[Candidate], congestion: Congestion
    ) -> float:
        # Full backends are no candidates, so a pool that is nearly full looks busier than it is;
        # it is busy enough for the price to be high either way.
        if request.urgent:
            return 0.0
        now, count, pending = request.now, len(candidates), 0.0
        for candidate in candidates:
            pending += candidate.pending_seconds(now)
        price = congestion.price(now, count, pending / count)
        most = self._params.theta_max
        return price if price < most else most

    def _add_spoilt(
        self, request: RouteRequest, candidates: Sequence[Candidate], costs: list[float]
    ) -> None:
        """Add what streams the prefill would spoil, where that can matter: to look at streams
        takes longer than all other terms, and those that cost more without it are out anyway."""
        worth = self.spoil(candidates)
        if not worth or not any(map(_DECODING, candidates)):
            return
        lowest = inf
        for place in sorted(range(len(costs)), key=costs.__getitem__):
            if costs[place] > _bound(lowest):
                return
            candidate = candidates[place]
            own = own_prefill_seconds(request, candidate)
            costs[place] += worth * candidate.spoilt_streams(request.now, own)
            lowest = min(lowest, costs[place])

    def spoil(self, candidates: Sequence[Candidate]) -> float:
        """Seconds that a stream is worth which a prefill would make miss its pace."""
        return self._params.spoil

    def costs(
        self,
        request: RouteRequest,
        candidates: Sequence[Candidate],
        queues: Sequence[float],
        theta: float,
    ) -> tuple[list[float], list[float]]:
        """What each candidate costs but for the streams there, and of that what company costs.

        A subclass may know of other ways to use a candidate, and say what the cheapest costs.
        """
        params = self._params
        return placement_seconds(request, candidates, queues, theta, params.eta, params.omega)

    def _terms(
        self,
        request: RouteRequest,
        candidates: Sequence[Candidate],
        queues: Sequence[float],
        theta: float,
    ) -> Iterator[dict[str, float]]:
        params = self._params
        costs, _ = self.costs(request, candidates, queues, theta)
        credits = self._credits(request, candidates) or [0.0] * len(costs)
        for candidate, queue, cost, credit in zip(candidates, queues, costs, credits, strict=True):
            own = own_prefill_seconds(request, candidate)
            as_usual = own * candidate.prefill_rate / candidate.usual_rate
            streams = params.spoil * candidate.spoilt_streams(request.now, own)
            yield {
                "matched_tokens": request.match.tokens.get(candidate.id, 0.0),
                "queue": queue,
                "prefill": own,
                "price": theta * as_usual + params.eta * candidate.decoding * own,
                "streams": streams,
                "decode": params.omega
                * decode_seconds(candidate, request.output_tokens, request.prompt_tokens),
                "memory": memory_seconds(candidate, request),
                "copy": -credit or 0.0,
                "total": cost + streams - credit,
            }

    def _cheapest(
        self, request: RouteRequest, candidates: Sequence[Candidate], costs: list[float]
    ) -> Candidate:
        lowest = min(costs)
        held = request.match.blocks
        if not held and request.now < self._company_until:
            place = _of_two(request, candidates, costs)
            if place is not None:
                return candidates[place]
        bound = _bound(lowest) if held else lowest
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
            self._placing = request.chain
            anchor, weight = request.chain[-HASH_BYTES:], float(request.prompt_tokens)
            return self._placements.choose(anchor, tied, request.now, weight)
        return self._rotation.next(request.model, tied)


def _of_two(
    request: RouteRequest, candidates: Sequence[Candidate], costs: Sequence[float]
) -> int | None:
    """The place of the better of two, None when it is not good enough or there is no key."""
    key = request.session.encode() if request.session else request.chain[-HASH_BYTES:]
    if not key:
        return None
    first, second = highest_two(key, candidates)
    better = first if costs[first] <= _bound(costs[second]) else second
    return better if costs[better] <= WORST_OF_TWO * min(costs) else None


def _bound(lowest: float) -> float:
    """Up to where a cost is as good as the lowest."""
    return lowest + max(TIE_SHARE * lowest, TIE_SECONDS)


def _queues(request: RouteRequest, candidates: Sequence[Candidate]) -> list[float]:
    return [candidate.queue_seconds(request) for candidate in candidates]


def longest_held(request: RouteRequest) -> bytes:
    """The last block of what any backend holds of a prompt; b"" when none holds any."""
    held = request.match.blocks
    end = max(held.values()) * HASH_BYTES if held else 0
    return request.chain[end - HASH_BYTES : end]


def _holds_most(request: RouteRequest, candidate: Candidate) -> bool:
    held = request.match.blocks
    return held.get(candidate.id, 0) == max(held.values())


def _reason(
    request: RouteRequest,
    place: int,
    costs: Sequence[float],
    credits: Sequence[float],
    chosen: Candidate,
) -> Reason:
    held = request.match.blocks
    if not held:
        return Reason.LOAD
    if held.get(chosen.id, 0) >= max(held.values()):
        return Reason.PREFIX
    if not credits:
        return Reason.SPILL
    without = costs[place] + credits[place]
    at_holders = (cost for cost, credit in zip(costs, credits, strict=True) if not credit)
    return Reason.COPY if without > min(at_holders, default=inf) else Reason.SPILL
