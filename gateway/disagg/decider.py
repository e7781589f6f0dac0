"""Whether a handover pays: what a request costs on one engine and on two, in seconds.

Decode first: the engine that is to generate is the one that holds most of the prompt, unless it
is busier than that is worth. Another engine computes the rest only if that is cheaper, its queue,
the transfer of what the decode engine lacks and all that either way costs others included.

The terms are those of `policies.cost`, so "how busy" means the same with and without handovers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

import msgspec

from gateway.disagg.engines import TransferSeconds
from gateway.disagg.impatience import NOBODY, Slacks, made_late
from policies.base import Candidate, RouteRequest
from policies.cost import (
    beside_streams,
    cold_seconds,
    decode_seconds,
    memory_seconds,
    prefill_seconds,
)

MARGIN_SHARE = 0.05
MARGIN_SECONDS = 10e-3
"""By how much a handover must be cheaper, whichever is more: it is one more thing to go wrong."""
PATIENCE_SECONDS = 2.0
PATIENCE_FACTOR = 3.0
"""Times its prefill alone on an idle engine: how long a request can wait for its first token."""
ELSEWHERE = 0.5
"""Of those who would be late behind a prompt, the share that cannot go elsewhere instead."""
NO_ROOM_SECONDS = 2.0
"""What it costs to wait for memory at a decode engine that has none left."""
LOOKED_AT = 8
"""Decode engines that each prefill engine is paired with, at most: the best without regard to the
way between the two."""


@dataclass(slots=True, frozen=True)
class Prices:
    """What work costs others.

    Attributes:
        theta: price of a second of prefill for those who come later.
        eta: of a second of prefill for each stream beside it.
        spoil: seconds that a stream is worth which a prefill would make miss its pace.
        omega: weight of decode: the request's own, and what it slows others' down by.
        missed: seconds that a first token is worth which comes in time, the request's own or that
            of those who come after it.
        overdue: seconds that each second of waiting is worth to a request whose first token is
            late whatever happens.
        blocking: who comes to an engine, by its id, and could be made late; see `Impatience`.
    """

    theta: float = 0.0
    eta: float = 0.0
    spoil: float = 4.0
    omega: float = 0.3
    missed: float = 0.0
    overdue: float = 1.0
    blocking: Mapping[str, Slacks] = field(default_factory=dict)


class Terms(msgspec.Struct, frozen=True):
    """What a placement costs, each in seconds.

    Attributes:
        queue: prefill that goes first, at the engine that computes the prompt; less where the
            first token is late whatever happens.
        prefill: the request's own, among the streams that run there.
        price: what that prefill costs later arrivals and the streams beside it.
        blocking: what it costs those who come meanwhile.
        late: what its own first token is worth, as far as it is likely to be late.
        streams: those that it would make miss their pace.
        transfer: from the end of the prefill to when its KV cache is there.
        landing: prefill at the decode engine that the last step waits for.
        decode: the request's own, and the slow-down that it brings to others.
        memory: steep from 95 % of the KV cache on, of either engine.
        hosting: what later prefills do to its answer, at an engine that is there for prefills.
        margin: by how much a handover must be cheaper than what one engine does.
        turning: to leave the engines of the role in whose line it waits.
    """

    queue: float
    prefill: float
    price: float
    blocking: float
    late: float
    streams: float
    transfer: float
    landing: float
    decode: float
    memory: float
    hosting: float = 0.0
    margin: float = 0.0
    turning: float = 0.0

    @property
    def ttft(self) -> float:
        """Seconds to the request's own first token."""
        return self.queue + self.prefill + self.transfer + self.landing

    @property
    def total(self) -> float:
        for_others = self.price + self.blocking + self.streams
        own = self.ttft + self.late + self.decode + self.memory + self.hosting
        return own + for_others + self.turning + self.margin


class Placement(msgspec.Struct, frozen=True):
    """Attributes:
    prefill: id of the engine that computes the prompt.
    decode: id of the engine that generates; the same without a handover.
    """

    prefill: str
    decode: str
    terms: Terms

    @property
    def is_remote(self) -> bool:
        return self.prefill != self.decode


class Computing(msgspec.Struct, frozen=True):
    """What a prompt's prefill at an engine costs, as in `Terms`.

    Attributes:
        spare: seconds that the request can wait there and still have its first token in time; 0
            when that is past.
    """

    queue: float
    prefill: float
    price: float
    blocking: float
    streams: float
    memory: float
    spare: float


def computing(request: RouteRequest, candidate: Candidate, prices: Prices) -> Computing:
    matched = request.match.tokens.get(candidate.id, 0.0)
    own = prefill_seconds(candidate, request.prompt_tokens, matched)
    # The steps beside it take time, but would be made without it too.
    work = own - max(0.0, request.prompt_tokens - matched) * beside_streams(candidate)
    # As if the engine were as fast as usual: else the fast ones would draw all new work.
    usual = candidate.prefill_rate / candidate.usual_rate
    queue = candidate.queue_seconds(request)
    spare = patience_seconds(candidate, request.prompt_tokens) - own
    blocked = made_late(prices.blocking.get(candidate.id, NOBODY), own, queue, spare)
    overdue = request.deadline < request.now + own
    return Computing(
        prices.overdue * queue if overdue else queue,
        own,
        work * prices.theta * usual + own * prices.eta * candidate.decoding,
        ELSEWHERE * prices.missed * blocked,
        prices.spoil and prices.spoil * candidate.spoilt_streams(request.now, own),
        memory_seconds(candidate, request),
        0.0 if overdue or spare < 0.0 else spare,
    )


def _late(here: Computing, wait: float, prices: Prices) -> float:
    """Waits are known as means only: one is longer than what can be spared as if they were
    exponential."""
    if not here.spare:
        return prices.missed
    return prices.missed * exp(-here.spare / wait) if wait > 0.0 else 0.0


def patience_seconds(candidate: Candidate, prompt_tokens: float) -> float:
    """From a request's arrival to when its first token is due."""
    return max(PATIENCE_SECONDS, PATIENCE_FACTOR * cold_seconds(candidate, prompt_tokens))


def local_placement(
    request: RouteRequest,
    candidate: Candidate,
    prices: Prices,
    here: Computing | None = None,
    hosting: float = 0.0,
    turning: float = 0.0,
) -> Placement:
    """One engine does all of it.

    Args:
        here: `computing` there, where it is known already.
        hosting, turning: as in `Terms`.
    """
    if here is None:
        here = computing(request, candidate, prices)
    terms = Terms(
        queue=here.queue,
        prefill=here.prefill,
        price=here.price,
        blocking=here.blocking,
        late=_late(here, here.queue, prices),
        streams=here.streams,
        transfer=0.0,
        landing=0.0,
        decode=_decode(request, candidate, prices),
        memory=here.memory,
        hosting=hosting,
        turning=turning,
    )
    return Placement(candidate.id, candidate.id, terms)


class LandingSite(msgspec.Struct, frozen=True):
    """A decode engine, and what it costs to generate there.

    Attributes:
        lacking: prompt tokens that it does not hold.
    """

    id: str
    lacking: float
    landing: float
    decode: float
    memory: float

    @property
    def total(self) -> float:
        return self.landing + self.decode + self.memory


def landing_sites(
    request: RouteRequest,
    decode: Sequence[Candidate],
    transfer: TransferSeconds,
    prices: Prices,
) -> list[LandingSite]:
    """The best engines for generating, what they lack of the prompt included."""
    sites = []
    for each in decode:
        lacking = request.prompt_tokens - request.match.tokens.get(each.id, 0.0)
        memory = memory_seconds(each, request)
        room = each.memory_with(request) <= each.capacity_tokens
        sites.append(
            LandingSite(
                each.id,
                max(0.0, lacking),
                each.pending_seconds(request.now),
                _decode(request, each, prices),
                memory if room else memory + NO_ROOM_SECONDS,
            )
        )
    if len(sites) > LOOKED_AT:
        sites.sort(key=lambda site: site.total + transfer("", site.id, site.lacking, 0.0))
        del sites[LOOKED_AT:]
    sites.sort(key=_site_cost)
    return sites


def remote_placement(
    request: RouteRequest,
    prefill: Candidate,
    sites: Sequence[LandingSite],
    transfer: TransferSeconds,
    prices: Prices,
    here: Computing | None = None,
    turning: float = 0.0,
) -> Placement | None:
    """One engine computes the prompt, the best other one generates; None without another.

    Args:
        sites: the cheapest first.
        here: `computing` at the prefill engine, where it is known already.
        turning: as in `Terms`.
    """
    if here is None:
        here = computing(request, prefill, prices)
    best: LandingSite | None = None
    moving = cost = 0.0
    for site in sites:
        total = site.total
        if best is not None and total >= cost:
            break  # the way there takes no less than no time
        if site.id == prefill.id:
            continue
        seconds = transfer(prefill.id, site.id, site.lacking, here.prefill)
        if best is None or seconds + total < cost:
            best, moving, cost = site, seconds, seconds + total
    if best is None:
        return None
    terms = Terms(
        queue=here.queue,
        prefill=here.prefill,
        price=here.price,
        blocking=here.blocking,
        late=_late(here, here.queue + moving + best.landing, prices),
        streams=here.streams,
        transfer=moving,
        landing=best.landing,
        decode=best.decode,
        memory=best.memory + here.memory,
        turning=turning,
    )
    margin = max(MARGIN_SHARE * (terms.total - turning), MARGIN_SECONDS)
    return Placement(prefill.id, best.id, msgspec.structs.replace(terms, margin=margin))


def _decode(request: RouteRequest, candidate: Candidate, prices: Prices) -> float:
    return prices.omega * decode_seconds(candidate, request.output_tokens, request.prompt_tokens)


def _site_cost(site: LandingSite) -> float:
    return site.total
