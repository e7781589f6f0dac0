from __future__ import annotations

import argparse

import pytest

from gateway.config import ConfigError
from loadtests.sim import cli
from loadtests.sim import profile as profiles
from loadtests.sim.profile import Profile


def chosen(*options: str) -> Profile:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.profile_from(parser.parse_args(options))


def test_without_options_the_profile_is_as_it_comes() -> None:
    assert chosen() == profiles.load(profiles.DEFAULT)


def test_options_go_over_the_profile() -> None:
    profile = chosen(
        *("--max-num-batched-tokens", "512", "--max-num-seqs", "8", "--speed", "2"),
        *("--long-prefill-token-threshold", "128", "--no-prefix-caching"),
    )
    assert profile.max_num_batched_tokens == 512
    assert profile.max_num_seqs == 8
    assert profile.long_prefill_token_threshold == 128
    assert profile.timing.base == 0.004
    assert not profile.prefix_caching


def test_a_small_cache_limits_the_length_of_sequences() -> None:
    assert chosen("--kv-tokens", "1000").max_model_len == 992
    with pytest.raises(ConfigError, match="does not hold"):
        chosen("--kv-tokens", "1000", "--max-model-len", "1000")


def test_without_chunking_the_budget_holds_the_longest_prompt() -> None:
    assert chosen("--no-chunked-prefill").max_num_batched_tokens == 131072
    assert chosen("--no-chunked-prefill", "--max-model-len", "1024").max_num_batched_tokens == 2048
    with pytest.raises(ConfigError, match="without chunked_prefill"):
        chosen("--no-chunked-prefill", "--max-num-batched-tokens", "4096")


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf"])
def test_speed_must_be_a_positive_number(speed: str) -> None:
    with pytest.raises(SystemExit):
        chosen("--speed", speed)


def test_a_wrong_profile_is_told_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["--profile", "no-such-profile"]) == 2
    assert "no-such-profile" in capsys.readouterr().err
