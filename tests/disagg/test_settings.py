"""P16: settings that contradict each other are refused, and say which and why; those that do not
reach the engines' sides."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import (
    BackendConfig,
    BreakerConfig,
    ConfigError,
    ConnectorName,
    Settings,
    Transfer,
    convert,
)
from gateway.disagg.connector import Side
from gateway.disagg.connectors import CONNECTORS
from gateway.disagg.sides import side_of
from gateway.fleet.backend import Backend, Source
from gateway.fleet.facts import EngineFacts
from gateway.types import EngineKind, Role

A, B = {"url": "http://10.0.0.1:8000"}, {"url": "http://10.0.0.2:8000"}
PREFILL, DECODE = A | {"role": "prefill"}, B | {"role": "decode"}


def settings(**tree: Any) -> Settings:
    return convert(tree, Settings, "config.yaml")


def pair(connector: str, /, **transfer: Any) -> dict[str, Any]:
    prefill = PREFILL | {"transfer": transfer} if transfer else PREFILL
    return {"disagg": {"connector": connector}, "backends": [prefill, DECODE]}


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"backends": [A]},
        {"backends": [PREFILL, DECODE]},
        pair("nixl_pull"),
        pair("nixl_pull", host="10.9.9.9", tp_size=4),
        pair("nixl_push", engine_id="p0", side_channel_port=5601, tp_size=2, pp_size=2, dp_size=2),
        pair("mooncake", engine_id="p0", bootstrap_port=8999, dp_size=2),
        pair("sglang", bootstrap_port=8999, dp_size=2, host="fd00::1"),
        pair("trtllm"),
        pair("shared_store"),
        pair("trtllm", connector="nixl_push", engine_id="p0") | {"backends": [PREFILL, A]},
        {"server": {"pass_transfer_fields": True}, "backends": [PREFILL, DECODE]},
        {"disagg": {"models": {"m": {"bytes_per_token": 7}}, "min_uncached_tokens": 0}},
    ],
)
def test_what_goes_together_is_taken(tree: dict[str, Any]) -> None:
    settings(**tree)


NO_USE = "has no use for it"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"disagg": {"connector": "nixl"}},
        r"disagg\.connector: .*'nixl'.*nixl_pull.*shared_store",
    ),
    (pair("nixl_push"), r"backends\[0\]\.transfer\.engine_id: missing; nixl_push needs"),
    (
        pair("nixl_pull", side_channel_port=5600),
        rf"backends\[0\]\.transfer\.side_channel_port: got 5600, but nixl_pull {NO_USE} "
        r"\(it reads host, tp_size\)",
    ),
    (pair("nixl_pull", bootstrap_port=8998), rf"transfer\.bootstrap_port: got 8998.*{NO_USE}"),
    (pair("nixl_pull", engine_id="p0"), rf"transfer\.engine_id: got 'p0'.*{NO_USE}"),
    (pair("nixl_push", engine_id="p0", bootstrap_port=1), rf"transfer\.bootstrap_port.*{NO_USE}"),
    (pair("mooncake", side_channel_port=1), rf"transfer\.side_channel_port.*{NO_USE}"),
    (pair("sglang", engine_id="p0"), rf"transfer\.engine_id.*sglang {NO_USE}"),
    (pair("trtllm", host="a"), rf"transfer\.host.*{NO_USE} \(it reads nothing\)"),
    (pair("shared_store", dp_size=2), rf"transfer\.dp_size: got 2.*{NO_USE}"),
    (pair("sglang", host="http://a"), r"transfer\.host"),
    (pair("sglang", bootstrap_port=0), r"transfer\.bootstrap_port"),
    (pair("sglang", bootstrap_port=70_000), r"transfer\.bootstrap_port"),
    (pair("sglang", tp_size=0), r"transfer\.tp_size"),
    (pair("sglang", room=7), r"transfer.*unknown field `room`"),
    (
        {"backends": [PREFILL | {"kind": "sglang", "transfer": {"connector": "nixl_pull"}}]},
        r"backends\[0\]: kind: got sglang, but it is to speak nixl_pull, which is vllm",
    ),
    (
        {"disagg": {"connector": "sglang"}, "backends": [PREFILL, DECODE | {"kind": "vllm"}]},
        r"backends\[1\]\.kind: got vllm, but it is to speak sglang, which is sglang",
    ),
    (
        {"disagg": {"connector": "shared_store"}, "backends": [DECODE | {"kind": "ollama"}]},
        r"which is sglang, vllm",
    ),
    (
        {"backends": [A | {"transfer": {"tp_size": 2}}]},
        r"backends\[0\]\.transfer: given, but the role is unified",
    ),
    (
        {"backends": [PREFILL | {"transfer": {"connector": "nixl_push"}}]},
        r"transfer\.engine_id: missing",
    ),
    (
        pair("sglang") | {"server": {"pass_transfer_fields": True}},
        r"server\.pass_transfer_fields: got true.*disagg\.connector",
    ),
    (
        {"disagg": {"connector": "sglang"}, "server": {"pass_transfer_fields": True}},
        r"server\.pass_transfer_fields: got true",
    ),
    (
        {
            "server": {"pass_transfer_fields": True},
            "backends": [PREFILL | {"transfer": {"connector": "sglang"}}],
        },
        r"server\.pass_transfer_fields: got true",
    ),
    (
        pair("nixl_pull", connector="sglang"),
        r"backends: prefill engines speak sglang and decode engines nixl_pull, so that no two",
    ),
    ({"disagg": {"fallback": "none"}}, r"disagg\.fallback.*'none'"),
    ({"disagg": {"bandwidth": 0}}, r"disagg\.bandwidth"),
    ({"disagg": {"min_uncached_tokens": -1}}, r"disagg\.min_uncached_tokens"),
    *(
        ({"disagg": {"models": {"m": model}}}, rf"disagg\.models\.m.*{problem}")
        for model, problem in (
            ({}, "exactly one of"),
            ({"dtype": "fp8"}, "exactly one of"),
            ({"layers": 32}, "exactly one of"),
            ({"layers": 32, "kv_heads": 8}, "exactly one of"),
            ({"layers": 32, "kv_heads": 8, "head_dim": 128, "latent_dim": 576}, "exactly one of"),
            ({"bytes_per_token": 7, "config": "c.json"}, "exactly one of"),
            ({"bytes_per_token": 7, "layers": 3, "latent_dim": 5}, "exactly one of"),
            ({"config": "c.json", "layers": 32}, "exactly one of"),
            ({"bytes_per_token": 7, "dtype": "fp8"}, "'fp8', but bytes_per_token says all"),
            (
                {"layers": 1, "kv_heads": 1, "head_dim": 1, "dtype": "fp8_ds_mla"},
                "fp8_ds_mla goes with latent_dim",
            ),
            ({"bytes_per_token": 7, "dtype": "q4"}, "'q4'"),
        )
    ),
]


@pytest.mark.parametrize(("tree", "problem"), REFUSED)
def test_P16_what_contradicts_itself_is_refused(tree: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings(**tree)


def test_what_a_source_says_of_all_its_backends_may_be_of_no_use_to_some() -> None:
    transfer = Transfer(connector=ConnectorName.NIXL_PUSH, tp_size=2)
    assert BackendConfig(url="http://a", transfer=transfer).role is Role.UNIFIED


def test_P16_a_backend_speaks_what_it_was_set_to() -> None:
    tree = pair("nixl_pull", connector="nixl_push", engine_id="p0")
    tree["backends"] += [A | {"role": "unified"}, DECODE | {"transfer": {"connector": "nixl_push"}}]
    read = settings(**tree)
    spoken = [read.disagg.connector_of(backend) for backend in read.backends]
    assert spoken == ["nixl_push", "nixl_pull", None, "nixl_push"]
    alone = settings(backends=[PREFILL, DECODE])
    assert [alone.disagg.connector_of(backend) for backend in alone.backends] == [None, None]


@pytest.mark.parametrize("connector", ConnectorName)
def test_P16_every_protocol_can_be_set(connector: ConnectorName) -> None:
    own = {"engine_id": "p0"} if connector is ConnectorName.NIXL_PUSH else {}
    read = settings(**pair(connector, **own))
    assert [read.disagg.connector_of(backend) for backend in read.backends] == [connector] * 2
    assert CONNECTORS[connector].name is connector


def backend(url: str, transfer: Transfer | None = None) -> Backend:
    config = BackendConfig(url=url, role=Role.PREFILL, transfer=transfer)
    return Backend(config, Source.CONFIG, lambda: 0.0, BreakerConfig())


def test_a_side_is_what_settings_say() -> None:
    transfer = Transfer(
        **{"host": "10.9.9.9", "bootstrap_port": 1, "side_channel_port": 2, "engine_id": "p0"},
        **{"tp_size": 3, "pp_size": 4, "dp_size": 5},
    )
    assert side_of(backend("http://10.0.0.1:8000", transfer), ("a", "b")) == Side(
        **{"host": "10.9.9.9", "bootstrap_port": 1, "engine_id": "p0", "engine_ids": ("a", "b")},
        **{"side_channel_host": "10.9.9.9", "side_channel_port": 2},
        **{"tp_size": 3, "pp_size": 4, "dp_size": 5},
    )


def test_a_side_is_what_the_address_and_the_engine_say() -> None:
    engine = backend("http://[fd00::1]:8000")
    assert side_of(engine) == Side(host="fd00::1")
    told = {"block_size": 64, "cache_dtype": "fp8_e5m2", "version": "0.5.23"}
    engine.facts = EngineFacts(EngineKind.SGLANG, "/health", **told)
    assert side_of(engine) == Side(
        host="fd00::1", page_size=64, cache_dtype="fp8_e5m2", version="0.5.23"
    )
