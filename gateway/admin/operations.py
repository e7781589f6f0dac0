"""What the admin API can do: one table of operations, and what each of them does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.admin import merging
from gateway.admin.control import Control
from gateway.admin.openapi import Handler, Operation, document
from gateway.admin.redaction import redacted
from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    ExplainRequest,
    Explanation,
    FlushRequest,
    IndexView,
    KeyView,
    NewKeyView,
    OverridesView,
    PolicyView,
    PoolView,
    ReloadView,
    RequestView,
)
from gateway.config import (
    AdminRole,
    BackendConfig,
    KeyOptions,
    NewKey,
    PolicyConfig,
    Scheduling,
    Settings,
    changed,
)
from gateway.disagg.report import ModelReport
from gateway.fleet.backend import BackendPatch

MOUNT = "/admin"

_OVERRIDDEN = {
    "policy": "the policy",
    "scheduling": "scheduling",
    "backends": "backends: those that were added with this API go, those removed come back",
    "keys": "API keys: those that were made with this API go",
}


class AdminApi:
    """Every operation takes path parameters and its body, and gives a status and what to answer."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET",
                "/v1/backends",
                "listBackends",
                "All backends, with their state and load.",
                self.list_backends,
                {200: list[BackendView]},
                merge=merging.backends,
            ),
            Operation(
                "POST",
                "/v1/backends",
                "addBackend",
                "Add a backend: 201 when it is new, 200 when its address was there and the two "
                "were merged.",
                self.add_backend,
                {200: BackendView, 201: BackendView},
                body=BackendConfig,
            ),
            Operation(
                "GET",
                "/v1/backends/{id}",
                "getBackend",
                "One backend.",
                self.get_backend,
                {200: BackendView},
                backend=True,
                merge=merging.backend,
            ),
            Operation(
                "PATCH",
                "/v1/backends/{id}",
                "patchBackend",
                "Change a backend's role, models or capacity.",
                self.patch_backend,
                {200: BackendView},
                body=BackendPatch,
                backend=True,
                role=AdminRole.OPERATE,
            ),
            Operation(
                "DELETE",
                "/v1/backends/{id}",
                "removeBackend",
                "Remove a backend. What it is working on is still answered. It stays away until it "
                "is added again, or a source says something else of it.",
                self.remove_backend,
                {204: None},
                backend=True,
            ),
            Operation(
                "POST",
                "/v1/backends/{id}/drain",
                "drainBackend",
                "Send nothing new to a backend: 202 while it works on something, else 200.",
                self.drain_backend,
                {200: BackendView, 202: BackendView},
                backend=True,
                role=AdminRole.OPERATE,
            ),
            Operation(
                "POST",
                "/v1/backends/{id}/undrain",
                "undrainBackend",
                "Send to a backend again.",
                self.undrain_backend,
                {200: BackendView},
                backend=True,
                role=AdminRole.OPERATE,
            ),
            Operation(
                "GET",
                "/v1/discovery",
                "listDiscovery",
                "The configured sources of backends, and how they are.",
                self.list_discovery,
                {200: list[DiscoveryView]},
                merge=merging.discovery,
            ),
            Operation(
                "GET",
                "/v1/policies",
                "listPolicies",
                "All routing policies, with their parameters.",
                self.list_policies,
                {200: list[PolicyView]},
            ),
            Operation(
                "GET",
                "/v1/policy",
                "getPolicy",
                "The policy that decides now, with all its parameters.",
                self.get_policy,
                {200: PolicyConfig},
            ),
            Operation(
                "PUT",
                "/v1/policy",
                "setPolicy",
                "Have another policy decide. Parameters that are left out take their defaults.",
                self.set_policy,
                {200: PolicyConfig},
                body=PolicyConfig,
                role=AdminRole.OPERATE,
            ),
            Operation(
                "GET",
                "/v1/scheduling",
                "getScheduling",
                "The limits, shares and targets that hold now.",
                self.get_scheduling,
                {200: Scheduling},
            ),
            Operation(
                "PATCH",
                "/v1/scheduling",
                "patchScheduling",
                "Change some of them, for all models and from now on. What is left out stays; null "
                "is a value.",
                self.patch_scheduling,
                {200: Scheduling},
                body=Scheduling,
                partial=True,
                role=AdminRole.OPERATE,
            ),
            Operation(
                "POST",
                "/v1/explain",
                "explain",
                "What would be done with a request now. Nothing is sent, booked or counted.",
                self.explain,
                {200: Explanation},
                body=ExplainRequest,
                role=AdminRole.READ,
            ),
            Operation(
                "GET",
                "/v1/index",
                "getIndex",
                "The prefix index in numbers.",
                self.get_index,
                {200: IndexView},
                merge=merging.index,
            ),
            Operation(
                "POST",
                "/v1/index/flush",
                "flushIndex",
                "Forget what is believed to be cached.",
                self.flush_index,
                {200: IndexView},
                body=FlushRequest,
                body_optional=True,
                backend=True,
                role=AdminRole.OPERATE,
            ),
            Operation(
                "GET",
                "/v1/queues",
                "listQueues",
                "All pools, with their queues.",
                self.list_queues,
                {200: list[PoolView]},
                merge=merging.queues,
            ),
            Operation(
                "GET",
                "/v1/disagg",
                "getDisagg",
                "Prefill and decode apart, by model: how busy the pools are, what was handed over "
                "in the last minutes, and whether it pays or would pay.",
                self.get_disagg,
                {200: list[ModelReport]},
                merge=merging.disagg,
            ),
            Operation(
                "GET",
                "/v1/requests",
                "listRequests",
                "Requests under way, the oldest first.",
                self.list_requests,
                {200: list[RequestView]},
                merge=merging.requests,
            ),
            Operation(
                "GET",
                "/v1/keys",
                "listKeys",
                "The API keys by name, with their limits and what they have used.",
                self.list_keys,
                {200: list[KeyView]},
                merge=merging.keys,
            ),
            Operation(
                "POST",
                "/v1/keys",
                "addKey",
                "Make an API key. The answer has it, once: only its hash is kept.",
                self.add_key,
                {201: NewKeyView},
                body=NewKey,
            ),
            Operation(
                "PATCH",
                "/v1/keys/{name}",
                "patchKey",
                "Change an API key's limits, models, priority or tenant, also of one in the "
                "settings. What is left out stays; null is a value.",
                self.patch_key,
                {200: KeyView},
                body=KeyOptions,
                partial=True,
                named=True,
            ),
            Operation(
                "DELETE",
                "/v1/keys/{name}",
                "removeKey",
                "Forget an API key that was made with this API. Those in the settings are taken "
                "out there.",
                self.remove_key,
                {204: None},
                refusable=True,
                named=True,
            ),
            Operation(
                "GET",
                "/v1/overrides",
                "listOverrides",
                "What was set with this API and holds over what the settings say.",
                self.list_overrides,
                {200: OverridesView},
            ),
            *(
                Operation(
                    "DELETE",
                    f"/v1/overrides/{section}",
                    f"drop{section.capitalize()}Overrides",
                    f"Go back to what the settings say of {what}.",
                    self._dropping(section),
                    {200: OverridesView},
                )
                for section, what in _OVERRIDDEN.items()
            ),
            Operation(
                "GET",
                "/v1/config",
                "getConfig",
                "The settings that hold now, without the secrets.",
                self.get_config,
                {200: Settings},
            ),
            Operation(
                "POST",
                "/v1/config/reload",
                "reloadConfig",
                "Load the config file anew. When something in it is wrong, nothing changes.",
                self.reload_config,
                {200: ReloadView},
                refusable=True,
            ),
            Operation(
                "GET",
                "/openapi.json",
                "getOpenapi",
                "This document.",
                self.get_openapi,
                {200: dict[str, Any]},
            ),
        )

    def list_backends(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.backends()

    async def add_backend(self, path: Mapping[str, str], body: BackendConfig) -> tuple[int, Any]:
        backend, new = await self._control.add_backend(body)
        return 201 if new else 200, backend

    def get_backend(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.backend(path["id"])

    async def patch_backend(self, path: Mapping[str, str], body: BackendPatch) -> tuple[int, Any]:
        return 200, await self._control.patch_backend(path["id"], body)

    async def remove_backend(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        await self._control.remove_backend(path["id"])
        return 204, None

    async def drain_backend(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        backend = await self._control.drain_backend(path["id"], True)
        return 202 if backend.load.in_flight else 200, backend

    async def undrain_backend(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, await self._control.drain_backend(path["id"], False)

    def list_discovery(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.discovery()

    def list_policies(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.policies()

    def get_policy(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.policy()

    async def set_policy(self, path: Mapping[str, str], body: PolicyConfig) -> tuple[int, Any]:
        return 200, await self._control.set_policy(body)

    def get_scheduling(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.scheduling()

    async def patch_scheduling(self, path: Mapping[str, str], body: Any) -> tuple[int, Any]:
        scheduling = changed(self._control.scheduling(), body)
        return 200, await self._control.set_scheduling(scheduling)

    def explain(self, path: Mapping[str, str], body: ExplainRequest) -> tuple[int, Any]:
        sent = b"" if body.body is None else msgspec.json.encode(body.body)
        return 200, self._control.explain(body.method, body.path, body.headers, sent)

    def get_index(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.index_stats()

    def flush_index(self, path: Mapping[str, str], body: FlushRequest) -> tuple[int, Any]:
        return 200, self._control.flush_index(body.backend, body.model)

    def list_queues(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.queues()

    def get_disagg(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.disagg()

    def list_requests(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.requests()

    def list_keys(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.keys()

    async def add_key(self, path: Mapping[str, str], body: NewKey) -> tuple[int, Any]:
        return 201, await self._control.add_key(body)

    async def patch_key(self, path: Mapping[str, str], body: Any) -> tuple[int, Any]:
        return 200, await self._control.patch_key(path["name"], body)

    async def remove_key(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        await self._control.remove_key(path["name"])
        return 204, None

    def list_overrides(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, self._control.overrides()

    def _dropping(self, section: str) -> Handler:
        async def drop(path: Mapping[str, str], body: None) -> tuple[int, Any]:
            return 200, await self._control.drop_overrides(section)

        return drop

    def get_config(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, redacted(msgspec.to_builtins(self._control.settings()))

    async def reload_config(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, await self._control.reload()

    def get_openapi(self, path: Mapping[str, str], body: None) -> tuple[int, Any]:
        return 200, document(self.operations(), MOUNT)
