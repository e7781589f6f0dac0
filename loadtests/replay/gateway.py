"""The gateway in virtual time: what the live one does to a request, without HTTP.

Policy, classes, limits, queues, leases, index and estimates are the gateway's own modules; only the
clock, the engines and the way in are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gateway.config import Index, Scheduling
from gateway.estimates.outputs import Outputs
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.classify import appraise
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.speeds import Speeds
from gateway.types import NO_MATCH, Chain, Match, Role
from loadtests.replay.exchange import Exchange
from loadtests.replay.knowledge import LIVE, Classes, Knowledge, Output
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim.engine import Engine
from loadtests.sim.timeline import Timeline
from policies.base import Policy, RouteRequest
from policies.cost import TYPICAL_OUTPUT

MODEL = "model"
ROUTE = "replay"
TICK = 0.05
"""Seconds between two looks for overdue tickets."""
REFRESH = 1.0
"""Seconds until what was learnt about speeds is used."""


class VirtualGateway:
    """
    Args:
        engines: that run on `timeline`.
        policy: for this gateway alone, because policies keep state.
        trace: that the requests are of.
        knowledge: what it learns.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        policy: Policy,
        scheduling: Scheduling,
        trace: Trace,
        timeline: Timeline,
        knowledge: Knowledge = LIVE,
    ) -> None:
        self.knowledge = knowledge
        self.units = trace.units
        self.token_ratio = trace.token_ratio
        self.index = PrefixIndex(trace.coarser(knowledge.block), Index().max_blocks)
        self.engines = list(engines)
        self.places = {f"engine-{place}": place for place in range(len(engines))}
        for id, engine in zip(self.places, engines, strict=True):
            # The index counts nominal tokens.
            capacity = knowledge.index_capacity * _cache_tokens(engine) / trace.token_ratio
            self.index.add_backend(id, capacity)
        self.outputs = Outputs()
        self._loads = {
            id: _load(id, engine) for id, engine in zip(self.places, engines, strict=True)
        }
        self.speeds = Speeds(self._loads, timeline.time)
        for id, load in self._loads.items():
            self.speeds.backend_changed(id, MODEL, load.capacity_tokens)
        self.pool = Pool(MODEL, Role.UNIFIED, policy, scheduling, timeline.time)
        self.pool.set_backends(list(self._loads.values()))
        self.exchanges: list[dict[Exchange, None]] = [{} for _ in engines]
        """Per engine, what it has been sent and has not answered."""
        self._ids = list(self.places)
        self._timeline = timeline
        self._refreshed = 0.0
        self._inside = 0
        self._ticking = False

    def submit(self, request: TraceRequest, result: Result, ended: Callable[[], None]) -> None:
        """Take a request in now.

        Args:
            result: filled in as things happen.
            ended: called once, when the request is served or refused.
        """
        self._inside += 1
        if not self._ticking:
            self._ticking = True
            self._tick_later()

        def leave() -> None:
            self._inside -= 1
            ended()

        self.exchange(request, result, leave).enter()

    def exchange(
        self, request: TraceRequest, result: Result, ended: Callable[[], None]
    ) -> Exchange:
        return Exchange(self, request, result, ended)

    def remove(self, place: int) -> None:
        """Send nothing more to an engine; what it has goes on."""
        gone = self._ids[place]
        self.pool.set_backends([load for load in self.pool.backends if load.id != gone])

    def crash(self, place: int) -> None:
        """An engine is gone, and connections to it break at once."""
        self.remove(place)
        self.index.reset_backend(self._ids[place])
        self.speeds.backend_removed(self._ids[place])
        for exchange in list(self.exchanges[place]):
            exchange.broken()

    def join(self, place: int, engine: Engine) -> None:
        """An engine comes, or another in place of one that is gone."""
        id = self._ids[place]
        self.engines[place] = engine
        self.index.reset_backend(id)
        self.speeds.backend_changed(id, MODEL, self._loads[id].capacity_tokens)
        self.pool.set_backends([*self.pool.backends, self._loads[id]])

    def route_request(self, request: TraceRequest) -> RouteRequest:
        """The facts that class, limits and policy look at: what the client tells, and no more."""
        chain = request.chain_of(self.knowledge.block)
        facts = RouteRequest(
            model=MODEL,
            chain=chain,
            prompt_tokens=request.nominal_tokens,
            output_tokens=self._expected_output(request, chain),
            session=request.session,
            now=self._timeline.time(),
            tenant=request.tenant,
            priority=request.priority,
        )
        match = self.match(chain)
        if self.knowledge.classes is Classes.LENGTH:
            facts = appraise(facts, self.pool.backends, self.pool.scheduling)
            return msgspec.structs.replace(facts, match=match)
        facts = msgspec.structs.replace(facts, match=match)
        return appraise(facts, self.pool.backends, self.pool.scheduling)

    def time(self) -> float:
        return self._timeline.time()

    def match(self, chain: Chain) -> Match:
        """What each engine is believed to hold of a prompt."""
        return self.index.match(chain) if chain and self.knowledge.index else NO_MATCH

    def answered(self, request: TraceRequest, facts: RouteRequest) -> None:
        """An answer has ended by itself: learn its length."""
        self.outputs.learn(
            MODEL, ROUTE, request.tenant, facts.chain, request.max_tokens, request.output_tokens
        )

    def _expected_output(self, request: TraceRequest, chain: Chain) -> int:
        limit, how = request.max_tokens, self.knowledge.output
        if how is Output.TOLD:
            return request.output_tokens
        if how is Output.TYPICAL:
            return TYPICAL_OUTPUT if limit is None else min(limit, TYPICAL_OUTPUT)
        return round(self.outputs.expect(MODEL, ROUTE, request.tenant, chain, limit))

    def _tick_later(self) -> None:
        self._timeline.call_at(self._timeline.time() + TICK, self._tick)

    def _tick(self) -> None:
        self.pool.expire()
        now = self._timeline.time()
        if self.knowledge.rates and now - self._refreshed >= REFRESH:
            self._refreshed = now
            self.speeds.refresh()
        if self._inside:
            self._tick_later()
        else:
            self._ticking = False


def _load(id: str, engine: Engine) -> BackendLoad:
    """A backend as the gateway comes to know it: its memory for what runs, nothing of its speed."""
    profile = engine.profile
    return BackendLoad(id, capacity_tokens=profile.usable_blocks * profile.block_size)


def _cache_tokens(engine: Engine) -> int:
    return engine.profile.num_blocks * engine.profile.block_size
