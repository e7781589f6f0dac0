"""What the admin API can ask of the gateway, and how it is answered."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_hexdigest

from gateway.admin.views import (
    BackendView,
    CandidateView,
    DecisionView,
    Explanation,
    IndexView,
    MatchView,
    PolicyView,
    PoolView,
    RequestView,
)
from gateway.config import BackendConfig, ConfigError, PolicyConfig, Settings
from gateway.fleet.backend import Backend, BackendPatch, Source
from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import RequestError
from gateway.http.headers import read_request
from gateway.types import HASH_BYTES
from policies.base import Candidate
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
        backend, new = self._gateway.fleet.add(config, Source.ADMIN)
        return self._view(backend), new

    def patch_backend(self, id: str, patch: BackendPatch) -> BackendView:
        return self._view(self._gateway.fleet.patch(id, patch))

    def drain_backend(self, id: str, on: bool) -> BackendView:
        return self._view(self._gateway.fleet.drain(id, on))

    def remove_backend(self, id: str) -> None:
        self._gateway.fleet.remove(id)

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
        self._gateway.pools.policy = build(policy.name, policy.params)
        return self.policy()

    def explain(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Explanation:
        gateway = self._gateway
        pairs = [(b"content-type", b"application/json")] + [
            (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in headers.items()
        ]
        dialect = dialect_for(method, path)
        refusal = None
        candidates: Sequence[Candidate] = ()
        decision = None
        try:
            prompt, request = gateway.proxy.understand(dialect, read_request(pairs), body)
        except RequestError as error:
            raise ConfigError(f"body: {error}", field=error.param) from None
        try:
            candidates = gateway.proxy.pool(prompt.model).candidates(request)
        except RequestError as error:
            refusal = str(error)
        # A copy: policies take note of what they decide, and this decides nothing.
        policy = copy.deepcopy(gateway.pools.policy)
        terms = policy.explain(request, candidates) if candidates else []
        if candidates:
            decision = policy.choose(request, candidates)
        elif refusal is None:
            refusal = "Every backend of this model is at its limit: the request would wait."
        scores = decision.scores if decision is not None else ()
        return Explanation(
            dialect=dialect.name,
            model=prompt.model,
            namespace=xxh3_64_hexdigest(
                gateway.generations.namespace(prompt.model, prompt.namespace)
            ),
            key_bytes=len(prompt.key),
            blocks=len(request.chain) // HASH_BYTES,
            prompt_tokens=request.prompt_tokens,
            work_class=request.work_class,
            match=MatchView(blocks=dict(request.match.blocks), tokens=dict(request.match.tokens)),
            candidates=[
                CandidateView(
                    backend=candidate.id,
                    score=scores[at] if scores else None,
                    terms=terms[at] if terms else {},
                )
                for at, candidate in enumerate(candidates)
            ],
            decision=None
            if decision is None
            else DecisionView(backend=decision.backend, reason=decision.reason),
            refusal=refusal,
        )

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
            gateway.generations.raise_for(model)
        else:
            gateway.index.flush()
        return self.index_stats()

    def queues(self) -> list[PoolView]:
        return [PoolView.of(pool.snapshot()) for pool in self._gateway.pools]

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
                prompt_tokens=record.prompt_tokens,
                backend=record.backend or None,
                reason=record.reason,
                matched_tokens=record.matched_tokens,
                queue_seconds=record.queue_seconds,
            )
            for context in self._gateway.proxy.live.values()
            for record in (context.record,)
        ]

    def settings(self) -> Settings:
        return self._gateway.settings

    def _view(self, backend: Backend) -> BackendView:
        gateway = self._gateway
        return BackendView.of(backend, gateway.loads[backend.id], gateway.clock())
