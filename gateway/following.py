"""What a gateway has for each backend, kept in step with the fleet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.upstream import Upstream
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pools import ANY_MODEL
from gateway.types import Role

if TYPE_CHECKING:
    from gateway.app import Gateway

Serving = dict[str, list[BackendLoad]]
"""Backends, by the models that they serve."""

logger = logging.getLogger("prefixgate")


class Following:
    """Hears of the fleet's backends, and has connections, ledger, index, counters and pools follow.

    Args:
        gateway: whose they are. It has no backends yet.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._retired: list[Upstream] = []
        """Of removed backends, while they still have exchanges to end."""
        self._models: dict[str, frozenset[str]] = {}

    def restate(self) -> None:
        """Let all parts hear of every backend again: what is assumed of them has changed."""
        gateway = self._gateway
        for backend in gateway.fleet:
            self.changed(backend)

    def changed(self, backend: Backend) -> None:
        """Keep connections, ledger, index, counters and pools in step with one backend."""
        gateway = self._gateway
        id = backend.id
        gateway.metrics.backend_changed(id, backend.state)
        gateway.disagg.pairs.changed()
        if backend.state is BackendState.REMOVED:
            retired = gateway.upstreams.pop(id)
            retired.close()
            self._retired.append(retired)
            gateway.index.remove_backend(id)
            gateway.learning.backend_removed(id)
            gateway.disagg.pairs.forget(id)
            gateway.disagg.networks.removed(id)
        else:
            if id not in gateway.upstreams:
                self._add(backend)
            gateway.upstreams[id].access = backend.access
            capacity = self._capacity(backend)
            gateway.loads[id].capacity_tokens = capacity
            gateway.loads[id].trials = backend.trials
            self._give_up_on(backend)
            gateway.learning.backend_changed(id, next(iter(backend.models), ""), capacity)
        self._forget_unloaded(backend)
        # A ledger outlives its backend while leases are out: if the backend comes back before
        # they end, its limits still count them.
        for gone in [id for id in gateway.loads if id not in gateway.upstreams]:
            if not gateway.loads[gone].in_flight:  # a removed one counts no strangers'
                load = gateway.loads.pop(gone)
                if gateway.replication is not None:
                    gateway.replication.detach(load)
        self._update_pools()

    def restarted(self, backend: Backend) -> None:
        """An engine has lost what it had cached."""
        gateway = self._gateway
        logger.warning("backend %s restarted: its prefixes are forgotten", backend.id)
        if gateway.replication is None:
            gateway.index.reset_backend(backend.id)
        else:
            gateway.replication.index.restarted(backend.id)

    def tick(self) -> None:
        """Close connections that are idle for too long."""
        for upstream in (*self._gateway.upstreams.values(), *self._retired):
            upstream.tick()
        self._retired = [upstream for upstream in self._retired if upstream.busy]

    def _serving(self) -> Serving:
        """Who can take requests now, by model: engines that serve nothing without a handover only
        where one can be had, and prefill engines only where the policy chooses both engines
        together or nobody else is left."""
        gateway = self._gateway
        pairs = gateway.disagg.pairs
        serving: Serving = {}
        healthy = [other for other in gateway.fleet if other.state is BackendState.HEALTHY]
        prefills = [other for other in healthy if other.role is Role.PREFILL]
        whole = [
            other
            for other in healthy
            if other.role is not Role.PREFILL
            and (
                pairs.serves_alone(other)
                or any(pairs.matches(prefill, other) for prefill in prefills)
            )
        ]
        if gateway.disagg.joint is not None:
            decodes = [other for other in whole if other.role is Role.DECODE]
            whole += [
                other
                for other in prefills
                if any(pairs.matches(other, decode) for decode in decodes)
            ]
        alone = [other for other in prefills if pairs.serves_alone(other)]
        for backends in (whole, alone):
            found: Serving = {}
            for other in backends:
                for model in (*gateway.fleet.aliases.served_by(other.models), ANY_MODEL):
                    found.setdefault(model, []).append(gateway.loads[other.id])
            serving = found | serving
        return serving

    def _update_pools(self) -> None:
        """Tell the pools who can take requests: busy backends only where all are."""
        gateway, disagg = self._gateway, self._gateway.disagg
        busy = {other.id for other in gateway.fleet if other.busy is not None}
        had_prefills = bool(disagg.prefills)
        disagg.prefills.clear()
        disagg.prefills.update(self._prefills(busy))
        if bool(disagg.prefills) is not had_prefills:
            gateway.apply_policy()
        serving = self._serving()
        avoided: Serving = {}
        if busy:
            for model, loads in serving.items():
                free = [load for load in loads if load.id not in busy]
                if len(free) < len(loads) and self._answers(free):
                    avoided[model] = [load for load in loads if load.id in busy]
                    serving[model] = free
        screen = None if disagg.joint is None else disagg.engines.screen
        gateway.pools.update(serving, avoided, screen=screen, screened=disagg.prefills)

    def _answers(self, loads: Sequence[BackendLoad]) -> bool:
        """Whether any of them can generate, with a handover or without."""
        gateway = self._gateway
        backends = [gateway.fleet.get(load.id) for load in loads]
        return any(
            backend.role is not Role.PREFILL or gateway.disagg.pairs.serves_alone(backend)
            for backend in backends
        )

    def _prefills(self, busy: set[str]) -> Serving:
        """The prefill engines that can take prefill legs now, by model; an empty list where none
        of those that serve a model can."""
        gateway = self._gateway
        found: Serving = {}
        for backend in gateway.fleet:
            if backend.role is not Role.PREFILL:
                continue
            takes = backend.state is BackendState.HEALTHY and backend.id not in busy
            for model in (*gateway.fleet.aliases.served_by(backend.models), ANY_MODEL):
                loads = found.setdefault(model, [])
                if takes:
                    loads.append(gateway.loads[backend.id])
        return found

    def _give_up_on(self, backend: Backend) -> None:
        """When probes have put out a backend that has sent nothing either since the first of them
        failed, what waits for a first byte there need not wait for its limit. One that sends
        anything is at work, and one that only takes no more connections may be finishing."""
        gateway = self._gateway
        if backend.condition is BackendState.EJECTED and not backend.doubted:
            upstream = gateway.upstreams[backend.id]
            if upstream.heard_at < backend.failing_since:
                upstream.give_up()

    def _forget_unloaded(self, backend: Backend) -> None:
        """A model that a backend no longer lists may come back with other weights."""
        gateway = self._gateway
        before = self._models.get(backend.id, frozenset())
        models = frozenset(backend.models)
        for model in before - models:
            if gateway.replication is None:
                gateway.generations.raise_for(model)
            else:
                gateway.replication.index.unloaded(model)
        if backend.state is BackendState.REMOVED:
            self._models.pop(backend.id, None)
        else:
            self._models[backend.id] = models

    def _add(self, backend: Backend) -> None:
        gateway = self._gateway
        address = backend.address
        gateway.upstreams[backend.id] = Upstream(
            address.host, address.port, gateway.clock, backend.access
        )
        load = gateway.loads.get(backend.id)
        if load is None:
            load = gateway.loads[backend.id] = BackendLoad(backend.id)
            if gateway.replication is not None:
                gateway.replication.attach(load)
        gateway.index.add_backend(backend.id, self._capacity(backend))

    def _capacity(self, backend: Backend) -> float:
        gateway = self._gateway
        return float(backend.capacity_tokens or gateway.settings.index.capacity_tokens)
