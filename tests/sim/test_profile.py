from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError
from loadtests.sim import profile as profiles


def test_the_first_profile_is_what_it_says() -> None:
    profile = profiles.load("llama3-8b-fp16-a100-80g")
    timing = profile.timing
    assert 400_000 < profile.num_blocks * profile.block_size < 420_000
    assert timing.base == 0.008
    assert 0.2 < timing.prefill(0, 2048) < 0.3
    assert timing.prefill(60_000, 1) / timing.per_prefill_token == pytest.approx(3, rel=1e-4)


def test_a_faster_engine_is_faster_in_every_term() -> None:
    timing = profiles.load(profiles.DEFAULT).timing
    fast = timing.faster(4)
    assert fast.prefill(1000, 500) == pytest.approx(timing.prefill(1000, 500) / 4)
    assert fast.base == timing.base / 4
    assert fast.per_stream == timing.per_stream / 4
    assert fast.per_context_token == timing.per_context_token / 4


def test_contradictions_are_refused() -> None:
    profile = profiles.load(profiles.DEFAULT)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        profile.replace(max_num_batched_tokens=100)
    with pytest.raises(ConfigError, match="without chunked_prefill"):
        profile.replace(chunked_prefill=False)
    with pytest.raises(ConfigError, match="does not hold one sequence"):
        profile.replace(kv_tokens=1000)
    with pytest.raises(ConfigError, match="does not hold one sequence"):
        profile.replace(max_running_tokens=1000)
    with pytest.raises(ConfigError, match="kv_tokens"):
        profile.replace(kv_tokens=0)


def test_a_profile_can_be_a_file(tmp_path: Path) -> None:
    text = (profiles.PROFILES / f"{profiles.DEFAULT}.yaml").read_text()
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("model: llama3-8b", "model: mine"))
    assert profiles.load(str(file)).model == "mine"
    file.write_text(text + "colour: red\n")
    with pytest.raises(ConfigError, match="colour"):
        profiles.load(str(file))
    with pytest.raises(ConfigError, match=profiles.DEFAULT):
        profiles.load("no-such-profile")


def test_what_runs_may_use_a_part_of_the_cache() -> None:
    profile = profiles.load(profiles.DEFAULT)
    assert profile.usable_blocks == profile.num_blocks
    tiered = profile.replace(kv_tokens=1_000_000, max_running_tokens=200_000)
    assert tiered.num_blocks * 16 == 1_000_000
    assert tiered.usable_blocks * 16 == 200_000
    assert profile.replace(max_running_tokens=10**9).usable_blocks == profile.num_blocks
