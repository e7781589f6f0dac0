"""Bytes of KV cache per token, from what is known of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, KvCache
from gateway.disagg.shape import KvShape, shape_in, shape_of

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
GEMMA_3 = {
    "text_config": {
        **{"num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 256},
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"num_hidden_layers": 27},
}


def shape(config: dict[str, Any], dtype: str = "auto", **changes: Any) -> KvShape:
    merged = {key: value for key, value in {**config, **changes}.items() if value is not None}
    return shape_in(json.dumps(merged).encode(), dtype)


def test_llama_3_8b_has_131072_bytes_a_token_and_256_mib_in_2048() -> None:
    found = shape(LLAMA_3_8B)
    assert found.per_token == 131_072
    assert found.bytes(2048) == 256 * 1024 * 1024
    assert found.bytes(2048, held=1024) == 128 * 1024 * 1024
    assert found.bytes(2048, held=4096) == 0


@pytest.mark.parametrize(
    ("config", "dtype", "per_token"),
    [
        (LLAMA_3_8B, "fp8", 65_536),
        (LLAMA_3_8B, "fp8_e4m3", 65_536),
        (LLAMA_3_8B, "float32", 262_144),
        (LLAMA_3_8B, "nvfp4", 36_864),
        (LLAMA_3_8B | {"torch_dtype": "float32"}, "auto", 262_144),
        (LLAMA_3_8B | {"torch_dtype": "float32", "dtype": "float16"}, "auto", 131_072),
        (LLAMA_3_8B | {"torch_dtype": None}, "auto", 131_072),
        (LLAMA_3_8B | {"num_key_value_heads": None}, "auto", 524_288),
        (LLAMA_3_8B | {"num_key_value_heads": None, "multi_query": True}, "auto", 16_384),
        (LLAMA_3_8B | {"head_dim": 64}, "auto", 65_536),
        (LLAMA_3_8B | {"head_dim": None}, "auto", 131_072),
        (DEEPSEEK_V3, "auto", 61 * 576 * 2),
        (DEEPSEEK_V3, "fp8", 61 * 576),
        (DEEPSEEK_V3, "fp8_ds_mla", 61 * 656),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, "auto", 2 * 12 * 768 * 2),
        (
            LLAMA_3_8B | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8},
            "auto",
            131_072 / 4,
        ),
        (LLAMA_3_8B | {"sliding_window": 4096, "use_sliding_window": False}, "auto", 131_072),
        (LLAMA_3_8B | {"sliding_window": 4096}, "auto", 131_072),
    ],
)
def test_shapes(config: dict[str, Any], dtype: str, per_token: float) -> None:
    found = shape(config, dtype)
    assert found.per_token == pytest.approx(per_token)
    assert found.per_recent == 0


def test_layers_with_a_window_move_no_more_than_it() -> None:
    found = shape(GEMMA_3)
    layer = 2 * 4 * 256 * 2
    assert found.bytes(100) == 6 * layer * 100
    assert found.bytes(5000) == layer * 5000 + 5 * layer * 1024
    assert found.bytes(5000, held=4500) == 6 * layer * 500


def test_all_layers_may_have_a_window() -> None:
    found = shape(LLAMA_3_8B, model_type="mistral", sliding_window=4096)
    assert found.per_token == 0
    assert found.bytes(100_000) == 131_072 * 4096


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "num_key_value_heads|num_attention_heads"),
        (json.dumps(LLAMA_3_8B | {"num_hidden_layers": None}).encode(), "num_hidden_layers"),
        (json.dumps(LLAMA_3_8B | {"num_hidden_layers": "32"}).encode(), "'32'.*whole number"),
        (json.dumps(LLAMA_3_8B | {"num_hidden_layers": True}).encode(), "True.*whole number"),
        (json.dumps(LLAMA_3_8B | {"hidden_size": 0}).encode(), "hidden_size: got 0"),
        (json.dumps(LLAMA_3_8B | {"torch_dtype": "int3"}).encode(), "'int3', expected one of"),
        (json.dumps(DEEPSEEK_V3 | {"qk_rope_head_dim": None}).encode(), "qk_rope_head_dim"),
    ],
)
def test_what_does_not_tell_enough_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        shape_in(text)


def test_settings_give_a_shape_in_each_of_their_ways(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_3_8B))
    for settings, per_token in (
        (KvCache(bytes_per_token=1000), 1000),
        (KvCache(config=str(path)), 131_072),
        (KvCache(config=str(path), dtype="fp8"), 65_536),
        (KvCache(layers=32, kv_heads=8, head_dim=128), 131_072),
        (KvCache(layers=32, kv_heads=8, head_dim=128, dtype="fp8"), 65_536),
        (KvCache(layers=61, latent_dim=576), 61 * 576 * 2),
        (KvCache(layers=61, latent_dim=576, dtype="fp8_ds_mla"), 61 * 656),
    ):
        assert shape_of(settings, "m").per_token == per_token


def test_a_config_json_that_is_no_use_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    beginning = r"^disagg\.models\.org/m\.config: .*none\.json"
    with pytest.raises(ConfigError, match=beginning + " cannot be read: No such file") as unread:
        shape_of(KvCache(config=str(missing)), "org/m")
    assert unread.value.field == "disagg.models.org/m.config"
    missing.write_text("{}")
    with pytest.raises(ConfigError, match=beginning + ": none of"):
        shape_of(KvCache(config=str(missing)), "org/m")
