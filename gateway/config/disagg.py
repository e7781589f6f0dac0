"""Prefill and decode on engines of their own."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.base import Count, ModelName, Section, ServicePort
from gateway.types import EngineKind, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.config.backends import BackendConfig, BackendOptions

CacheType = Literal[
    "auto",
    "float32",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "nvfp4",
    "fp8_ds_mla",
]
Gigabits = Annotated[float, Meta(gt=0, le=100_000)]


class ConnectorName(StrEnum):
    """How two engines hand a KV cache over. Also a metric label, so the set is closed."""

    NIXL_PULL = "nixl_pull"
    NIXL_PUSH = "nixl_push"
    MOONCAKE = "mooncake"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    SHARED_STORE = "shared_store"


KINDS: dict[ConnectorName, frozenset[EngineKind]] = {
    ConnectorName.NIXL_PULL: frozenset({EngineKind.VLLM}),
    ConnectorName.NIXL_PUSH: frozenset({EngineKind.VLLM}),
    ConnectorName.MOONCAKE: frozenset({EngineKind.VLLM}),
    ConnectorName.SGLANG: frozenset({EngineKind.SGLANG}),
    ConnectorName.TRTLLM: frozenset({EngineKind.TRTLLM}),
    ConnectorName.SHARED_STORE: frozenset({EngineKind.VLLM, EngineKind.SGLANG}),
}
"""The engines that speak it."""
_READS: dict[ConnectorName, frozenset[str]] = {
    ConnectorName.NIXL_PULL: frozenset({"host", "tp_size"}),
    ConnectorName.NIXL_PUSH: frozenset(
        {"host", "engine_id", "side_channel_port", "tp_size", "pp_size", "dp_size"}
    ),
    ConnectorName.MOONCAKE: frozenset({"host", "bootstrap_port", "engine_id", "dp_size"}),
    ConnectorName.SGLANG: frozenset({"host", "bootstrap_port", "dp_size"}),
    ConnectorName.TRTLLM: frozenset(),
    ConnectorName.SHARED_STORE: frozenset(),
}
"""What of a backend's `transfer` means something to it."""


class Transfer(Section, frozen=True):
    """How a prefill or decode engine hands caches over, as it was started."""

    connector: ConnectorName | None = None
    """`disagg.connector` when not given."""
    host: Annotated[str, Meta(pattern=r"^[^\s/@\[\]]{1,253}$")] | None = None
    """Under which other engines reach it; its URL's when not given, and with nixl_pull what the
    engine itself says."""
    bootstrap_port: ServicePort | None = None
    """SGLang: --disaggregation-bootstrap-port, Mooncake: VLLM_MOONCAKE_BOOTSTRAP_PORT; 8998 when
    not given."""
    side_channel_port: ServicePort | None = None
    """VLLM_NIXL_SIDE_CHANNEL_PORT; 5600 when not given."""
    engine_id: Annotated[str, Meta(pattern=r"^[!-~]{1,200}$")] | None = None
    """Of --kv-transfer-config, without the rank that is added to it. mooncake asks the bootstrap
    server for it when not given, each time it probes the engine."""
    tp_size: Count = 1
    pp_size: Count = 1
    dp_size: Count = 1
    """Tensor, pipeline and data-parallel ranks."""

    def check(self, connector: ConnectorName) -> None:
        """Raises:
        ValueError: something is given that the protocol has no use for.
        """
        for field in msgspec.structs.fields(self):
            name = field.name
            if name == "connector" or name in _READS[connector]:
                continue
            value = getattr(self, name)
            if value != field.default:
                reads = ", ".join(sorted(_READS[connector])) or "nothing"
                raise ValueError(
                    f"transfer.{name}: got {value!r}, but {connector} has no use for it (it reads"
                    f" {reads})"
                )


class KvCache(Section, frozen=True):
    """How much cache a model's tokens take: as a number, from its config.json, or by its shape."""

    bytes_per_token: Count | None = None
    config: Annotated[str, Meta(min_length=1)] | None = None
    """Path of the model's config.json."""
    layers: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    latent_dim: Count | None = None
    """In place of the two before, for multi-head latent attention: kv_lora_rank +
    qk_rope_head_dim."""
    dtype: CacheType = "auto"
    """As engines' --kv-cache-dtype. auto is as the config.json says, 16 bits without one."""

    def __post_init__(self) -> None:
        shape = (self.layers, self.kv_heads, self.head_dim, self.latent_dim)
        given = tuple(value is not None for value in shape)
        ways = (self.bytes_per_token is not None, self.config is not None, any(given))
        whole = given in ((True, True, True, False), (True, False, False, True))
        if sum(ways) != 1 or (any(given) and not whole):
            raise ValueError(
                "a model's cache is given as exactly one of: bytes_per_token; config; layers,"
                " kv_heads and head_dim; layers and latent_dim"
            )
        if self.bytes_per_token is not None and self.dtype != "auto":
            raise ValueError(f"dtype: got {self.dtype!r}, but bytes_per_token says all")
        if self.dtype == "fp8_ds_mla" and self.kv_heads is not None:
            raise ValueError("dtype: fp8_ds_mla goes with latent_dim, not with kv_heads")


class Disagg(Section, frozen=True):
    connector: ConnectorName | None = None
    """How prefill and decode engines hand caches over that have no `transfer.connector`; null:
    those hand over nothing."""
    fallback: Literal["plain", "fail"] = "plain"
    """plain: one engine serves what is not worth a handover, or for which none can be had. fail:
    prefill and decode engines serve nothing by themselves; without a handover it is 503."""
    min_uncached_tokens: Annotated[int, Meta(ge=0)] | None = None
    """Requests with at least so many tokens that their decode engine lacks are handed over, all
    others are not; 0 hands over all. null: those for which it is expected to cost less."""
    bandwidth: Gigabits = 10.0
    """Gbit/s between two engines, until transfers have shown it."""
    models: dict[ModelName, KvCache] = {}
    """The models' caches, by name. Of others, transfers are learnt from scratch."""

    def connector_of(self, backend: BackendOptions) -> ConnectorName | None:
        """What a backend speaks; None when it takes no part in handovers."""
        if backend.role is Role.UNIFIED:
            return None
        own = backend.transfer.connector if backend.transfer is not None else None
        return own or self.connector

    def check(self, backends: Sequence[BackendConfig], *, passes_transfers: bool) -> None:
        """Raises:
        ValueError: settings contradict each other, so that what runs would not be what was asked
            for.
        """
        spoken: dict[Role, set[ConnectorName]] = {Role.PREFILL: set(), Role.DECODE: set()}
        for at, backend in enumerate(backends):
            connector = self.connector_of(backend)
            if backend.role is Role.UNIFIED and backend.transfer is not None:
                # Of what a source says for all of its backends, some may have no use.
                raise ValueError(
                    f"backends[{at}].transfer: given, but the role is unified; only prefill and"
                    " decode engines hand anything over"
                )
            if connector is not None:
                spoken[backend.role].add(connector)
                try:
                    check_backend(backend, connector)
                except ValueError as error:
                    raise ValueError(f"backends[{at}].{error}") from None
        if passes_transfers and (self.connector is not None or any(spoken.values())):
            raise ValueError(
                "server.pass_transfer_fields: got true, but where caches are handed over these"
                " fields are the gateway's own; one of it and disagg.connector must go"
            )
        prefill, decode = spoken[Role.PREFILL], spoken[Role.DECODE]
        if prefill and decode and prefill.isdisjoint(decode):
            raise ValueError(
                f"backends: prefill engines speak {_listed(prefill)} and decode engines"
                f" {_listed(decode)}, so that no two of them can hand anything over"
            )


def check_backend(backend: BackendOptions, connector: ConnectorName) -> None:
    """Raises:
    ValueError: what is said of a prefill or decode engine does not go with its protocol.
    """
    kinds = KINDS[connector]
    if backend.kind is not None and backend.kind not in kinds:
        raise ValueError(
            f"kind: got {backend.kind}, but it is to speak {connector}, which is {_listed(kinds)}"
        )
    transfer = backend.transfer or Transfer()
    transfer.check(connector)
    needs_id = connector is ConnectorName.NIXL_PUSH and backend.role is Role.PREFILL
    if needs_id and transfer.engine_id is None:
        raise ValueError(
            "transfer.engine_id: missing; nixl_push needs the engine_id that the prefill engine's"
            " --kv-transfer-config has"
        )


def _listed(names: set[ConnectorName] | frozenset[EngineKind]) -> str:
    return ", ".join(sorted(names))
