"""What the admin API can ask of the gateway, and how it is answered."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    Explanation,
    IndexView,
    KeyView,
    PolicyView,
    PoolView,
    ReloadView,
    RequestView,
)
from gateway.config import BackendConfig, ConfigError, PolicyConfig, Scheduling, Settings
from gateway.explain import explain
from gateway.fleet.backend import Backend, BackendPatch
from gateway.telemetry.digest import digest
from policies.registry import build, find, names

if TYPE_CHECKING:
    from gateway.app import Gateway


class GatewayControl:
    """Satisfies `gateway.admin.control.Control`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def backends(self) -> list[BackendView]:
        return [self._view(backend) for backend in self._gateway.fleet]

    def backend(self, id: str) -> BackendView:
        return self._view(self._gateway.fleet.get(id))

    def add_backend(self, config: BackendConfig) -> tuple[BackendView, bool]:
        backend, new = self._gateway.reconciler.add(config)
        return self._view(backend), new

    def patch_backend(self, id: str, patch: BackendPatch) -> BackendView:
        return self._view(self._gateway.reconciler.patch(id, patch))

    def drain_backend(self, id: str, on: bool) -> BackendView:
        return self._view(self._gateway.fleet.drain(id, on))

    def remove_backend(self, id: str) -> None:
        self._gateway.reconciler.remove(id)

    def discovery(self) -> list[DiscoveryView]:
        gateway = self._gateway
        now = gateway.clock()
        return [
            DiscoveryView(
                name=state.name,
                source=state.source,
                backends=sorted(gateway.reconciler.listed(state.source, state.name)),
                unreachable=gateway.reconciler.unreachable(state.source, state.name),
                age_seconds=None if state.read_at is None else now - state.read_at,
                failures=state.failures,
                cause=state.cause,
            )
            for state in gateway.feeds
        ]

    def policies(self) -> list[PolicyView]:
        current = self._gateway.pools.policy.name
        views = []
        for name in names():
            policy = find(name)
            views.append(
                PolicyView(
                    name=name,
                    description=inspect.getdoc(policy) or "",
                    current=name == current,
                    defaults=msgspec.structs.asdict(policy.params_type()),
                    params_schema=msgspec.json.schema(policy.params_type),
                )
            )
        return views

    def policy(self) -> PolicyConfig:
        policy = self._gateway.pools.policy
        return PolicyConfig(name=policy.name, params=msgspec.structs.asdict(policy.params))

    def set_policy(self, policy: PolicyConfig) -> PolicyConfig:
        gateway = self._gateway
        gateway.pools.policy = gateway.recorded(build(policy.name, policy.params))
        gateway.settings = msgspec.structs.replace(gateway.settings, policy=self.policy())
        return self.policy()

    def scheduling(self) -> Scheduling:
        return self._gateway.pools.scheduling

    def set_scheduling(self, scheduling: Scheduling) -> None:
        gateway = self._gateway
        gateway.pools.scheduling = scheduling
        gateway.settings = msgspec.structs.replace(gateway.settings, scheduling=scheduling)

    def explain(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Explanation:
        return explain(self._gateway, method, path, headers, body)

    def index_stats(self) -> IndexView:
        gateway = self._gateway
        return IndexView.of(gateway.index.stats(), gateway.settings.index.max_blocks)

    def flush_index(self, backend: str | None, model: str | None) -> IndexView:
        gateway = self._gateway
        if backend is not None and model is not None:
            raise ConfigError(
                "body: give either backend or model: one model's prefixes are forgotten at all "
                "backends",
                field="backend",
            )
        if backend is not None:
            gateway.index.reset_backend(gateway.fleet.get(backend).id)
        elif model is not None:
            if not gateway.fleet.knows(model):
                raise ConfigError(f"body: model: no backend serves {model[:200]!r}", field="model")
            for name in gateway.fleet.aliases.names(model) or (model,):
                gateway.generations.raise_for(name)
        else:
            gateway.index.flush()
        return self.index_stats()

    def queues(self) -> list[PoolView]:
        now = self._gateway.clock()
        return [PoolView.of(pool, now) for pool in self._gateway.pools]

    def requests(self) -> list[RequestView]:
        now = self._gateway.clock()
        return [
            RequestView(
                id=record.id,
                dialect=record.dialect,
                model=record.model[:200],
                stream=record.stream,
                phase=context.phase,
                age=now - record.arrived,
                work_class=record.work_class,
                priority=record.priority,
                tenant=digest(record.tenant),
                prompt_tokens=record.prompt_tokens,
                backend=record.backend or None,
                reason=record.reason,
                matched_tokens=record.matched_tokens,
                queue_seconds=record.queue_seconds,
            )
            for context in self._gateway.proxy.live.values()
            for record in (context.record,)
        ]

    def keys(self) -> list[KeyView]:
        now = self._gateway.clock()
        views = []
        for key in self._gateway.keys:
            use = key.use
            limits = use.limits
            use.requests.turn(now)
            use.tokens.turn(now)
            views.append(
                KeyView(
                    name=key.name,
                    tenant=key.tenant,
                    models=None if key.models is None else list(key.models),
                    max_priority=key.max_priority,
                    requests_per_minute=limits.requests_per_minute,
                    tokens_per_minute=limits.tokens_per_minute,
                    max_concurrent=limits.max_concurrent,
                    requests_used=use.requests.used,
                    tokens_used=use.tokens.used,
                    concurrent=use.concurrent,
                    requests_total=use.requests_total,
                    tokens_total=use.tokens_charged,
                    limited={str(limit): count for limit, count in use.refused.items()},
                )
            )
        return views

    def settings(self) -> Settings:
        gateway = self._gateway
        return msgspec.structs.replace(
            gateway.settings,
            policy=self.policy(),
            backends=[backend.config for backend in gateway.fleet],
        )

    async def reload(self) -> ReloadView:
        reloader = self._gateway.reloader
        if reloader is None:
            raise ConfigError("there is no config file to load: the gateway was started without")
        reloaded = await reloader.reload()
        return ReloadView(changed=reloaded.changed, needs_restart=reloaded.needs_restart)

    def _view(self, backend: Backend) -> BackendView:
        gateway = self._gateway
        return BackendView.of(backend, gateway.loads[backend.id], gateway.clock())
