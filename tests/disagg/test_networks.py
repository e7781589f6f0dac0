from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError, Disagg, KvCache
from gateway.disagg.networks import Networks

MODEL_CONFIG = (
    '{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,'
    ' "hidden_size": 4096, "torch_dtype": "bfloat16"}'
)


def test_each_model_has_its_own_and_others_have_none() -> None:
    cache = KvCache(layers=32, kv_heads=8, head_dim=128)
    networks = Networks(Disagg(bandwidth=100.0, models={"m": cache}))
    links = networks.of("m")
    assert links is not None
    assert links.shape.bytes(2048) == 256 * 1024**2
    assert links.bandwidth("d") == 12.5e9
    assert networks.of("other") is None


def test_what_was_learnt_outlives_a_reload_unless_the_shape_is_another() -> None:
    same, changed = KvCache(bytes_per_token=1000), KvCache(bytes_per_token=2000)
    networks = Networks(Disagg(models={"same": same, "changed": same, "gone": same}))
    for model in ("same", "changed"):
        links = networks.of(model)
        assert links is not None
        links.began("one", "p", "d", 1e9, 0.0)
        links.ended("one", 1.0)
    models = {"same": same, "changed": changed, "new": same}
    networks.reconfigure(Disagg(bandwidth=40.0, models=models))
    kept, anew = networks.of("same"), networks.of("changed")
    assert kept is not None
    assert anew is not None
    assert (kept.moved, anew.moved) == (1e12, 0.0)
    assert kept.bandwidth("d") > 1e11
    assert anew.bandwidth("d") == kept.prior == 5e9
    assert networks.of("gone") is None
    assert networks.of("new") is not None


def test_an_engine_that_is_gone_is_forgotten() -> None:
    networks = Networks(Disagg(models={"m": KvCache(bytes_per_token=1)}))
    links = networks.of("m")
    assert links is not None
    links.began("one", "p", "d", 1e9, 0.0)
    links.ended("one", 1.0)
    assert links.bandwidth("d") != links.usual_bandwidth
    networks.removed("d")
    assert links.bandwidth("d") == links.usual_bandwidth


def test_a_file_that_cannot_be_read_is_refused_at_first_and_changes_nothing_later(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.json"
    by_file = Disagg(models={"m": KvCache(config=str(file))})
    with pytest.raises(ConfigError, match="cannot be read"):
        Networks(by_file)
    networks = Networks(Disagg(models={"m": KvCache(bytes_per_token=7)}))
    before = networks.of("m")
    networks.reconfigure(by_file)
    assert networks.of("m") is before
    file.write_text(MODEL_CONFIG)
    networks.reconfigure(Disagg(models={"m": KvCache(config=str(file), dtype="fp8")}))
    after = networks.of("m")
    assert after is not None
    assert after.shape.bytes(1.0) == 65_536
