"""What the admin API can ask of the gateway, and how it is answered."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from gateway.admin.redaction import redacted
from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    Explanation,
    IndexView,
    KeyView,
    NewKeyView,
    OverridesView,
    OverrideView,
    PolicyView,
    PoolView,
    ReloadView,
    RequestView,
)
from gateway.config import (
    BackendConfig,
    ConfigError,
    NewKey,
    PolicyConfig,
    Scheduling,
    Settings,
)
from gateway.disagg.report import ModelReport
from gateway.explain import explain
from gateway.fleet.backend import Backend, BackendPatch
from gateway.telemetry.digest import digest
from policies.registry import find, names

if TYPE_CHECKING:
    from gateway.app import Gateway


class GatewayControl:
    """Satisfies `gateway.admin.control.Control`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def backends(self) -> list[BackendView]:
        return [self._view(backend) for backend in self._gateway.reconciler.ordered()]

    def backend(self, id: str) -> BackendView:
        return self._view(self._gateway.fleet.get(id))

    async def add_backend(self, config: BackendConfig) -> tuple[BackendView, bool]:
        backend, new = await self._gateway.overrides.add_backend(config)
        return self._view(backend), new

    async def patch_backend(self, id: str, patch: BackendPatch) -> BackendView:
        return self._view(await self._gateway.overrides.patch_backend(id, patch))

    async def drain_backend(self, id: str, on: bool) -> BackendView:
        return self._view(await self._gateway.overrides.drain_backend(id, on))

    async def remove_backend(self, id: str) -> None:
        await self._gateway.overrides.remove_backend(id)

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

    async def set_policy(self, policy: PolicyConfig) -> PolicyConfig:
        await self._gateway.overrides.set_policy(policy)
        return self.policy()

    def scheduling(self) -> Scheduling:
        return self._gateway.pools.scheduling

    async def set_scheduling(self, scheduling: Scheduling) -> Scheduling:
        await self._gateway.overrides.set_scheduling(scheduling)
        return self.scheduling()

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

    def disagg(self) -> list[ModelReport]:
        return self._gateway.disagg.report(self._gateway.reconciler.ordered())

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
            limits, used = use.limits, use.used(now)
            views.append(
                KeyView(
                    name=key.name,
                    tenant=key.tenant,
                    models=None if key.models is None else list(key.models),
                    max_priority=key.max_priority,
                    requests_per_minute=limits.requests_per_minute,
                    tokens_per_minute=limits.tokens_per_minute,
                    max_concurrent=limits.max_concurrent,
                    shared=use.shared,
                    requests_used=used.requests,
                    tokens_used=used.tokens,
                    concurrent=used.concurrent,
                    requests_total=use.requests_total,
                    tokens_total=use.tokens_charged,
                    limited={str(limit): count for limit, count in use.refused.items()},
                )
            )
        return views

    async def add_key(self, options: NewKey) -> NewKeyView:
        return NewKeyView(name=options.name, key=await self._gateway.overrides.add_key(options))

    async def patch_key(self, name: str, options: Mapping[str, Any]) -> KeyView:
        await self._gateway.overrides.patch_key(name, options)
        return next(view for view in self.keys() if view.name == name)

    async def remove_key(self, name: str) -> None:
        await self._gateway.overrides.remove_key(name)

    def overrides(self) -> OverridesView:
        overrides = self._gateway.overrides
        entries, state = overrides.entries(), overrides.state
        now = time.time() * 1000
        return OverridesView(
            shared=state.shared,
            version=state.version.number if overrides.lasting else None,
            overrides=[
                OverrideView(
                    name=name,
                    value=redacted(msgspec.json.decode(entry.value or b"null"), name),
                    age_seconds=max(0.0, (now - entry.at) / 1000),
                    shared=name not in state.unshared if overrides.lasting else None,
                    ignored=overrides.ignored.get(name),
                )
                for name, entry in entries.items()
            ],
        )

    async def drop_overrides(self, section: str) -> OverridesView:
        await self._gateway.overrides.drop(section)
        return self.overrides()

    @property
    def shared(self) -> bool | None:
        return self._gateway.overrides.state.shared

    def settings(self) -> Settings:
        gateway = self._gateway
        return msgspec.structs.replace(
            gateway.settings,
            policy=self.policy(),
            backends=[backend.config for backend in gateway.reconciler.ordered()],
        )

    async def reload(self) -> ReloadView:
        reloader = self._gateway.reloader
        if reloader is None:
            raise ConfigError("there is no config file to load: the gateway was started without")
        reloaded = await reloader.reload()
        if self._gateway.siblings is not None:
            await self._gateway.siblings.reload()
        return ReloadView(
            changed=reloaded.changed,
            needs_restart=reloaded.needs_restart,
            overridden=reloaded.overridden or UNSET,
        )

    def _view(self, backend: Backend) -> BackendView:
        gateway = self._gateway
        return BackendView.of(backend, gateway.loads[backend.id], gateway.clock())
