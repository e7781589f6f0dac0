"""What an engine is: how long its steps take, how much its KV cache holds, how it schedules.

Seconds, bytes and tokens throughout. A profile is a YAML file; `load` finds the ones that come
with the simulator by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from gateway.config import ConfigError, Section, convert

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]

PROFILES = Path(__file__).parent / "profiles"
DEFAULT = "llama3-8b-fp16-a100-80g"


class Timing(Section, frozen=True, kw_only=True):
    """How long a step takes: the sum of these terms."""

    base: Positive
    """Every step."""
    per_prefill_token: NotNegative
    """Each prompt token computed in the step, at position 0."""
    attention_scale: Positive
    """Position at which a prompt token costs twice as much."""
    per_stream: NotNegative
    """Each sequence that decodes in the step."""
    per_context_token: NotNegative
    """Each token of context that a decoding sequence attends to."""

    def prefill(self, start: int, tokens: int) -> float:
        """Seconds for prompt tokens `start` to `start + tokens`; adds up over any split."""
        return self.per_prefill_token * tokens * (1 + (start + tokens / 2) / self.attention_scale)

    def faster(self, factor: float) -> Timing:
        """The same engine, `factor` times as fast."""
        return Timing(
            base=self.base / factor,
            per_prefill_token=self.per_prefill_token / factor,
            attention_scale=self.attention_scale,
            per_stream=self.per_stream / factor,
            per_context_token=self.per_context_token / factor,
        )


class Memory(Section, frozen=True, kw_only=True):
    device_bytes: Positive
    utilization: Annotated[float, Meta(gt=0, le=1)]
    """Share of the device that the engine may use."""
    weight_bytes: NotNegative
    activation_bytes: NotNegative
    kv_bytes_per_token: Positive

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that fit beside weights and activations."""
        left = self.device_bytes * self.utilization - self.weight_bytes - self.activation_bytes
        return int(left / self.kv_bytes_per_token)


class Profile(Section, frozen=True, kw_only=True):
    model: str
    timing: Timing
    memory: Memory
    kv_tokens: Count | None = None
    """Size of the KV cache in place of what `memory` gives."""
    max_running_tokens: Count | None = None
    """Most of them that requests can use while they run; the rest, host memory say, only keeps
    content. All of them by default."""
    block_size: Count = 16
    max_model_len: Count
    max_num_batched_tokens: Count
    """Token budget of a step, prompt tokens and decoding sequences together."""
    max_num_seqs: Count = 256
    chunked_prefill: bool = True
    long_prefill_token_threshold: Annotated[int, Meta(ge=0)] = 0
    """Most prompt tokens of one sequence in a step while there are others; 0 is no limit."""
    prefix_caching: bool = True
    kv_lease: Positive = 30.0
    """Seconds for which a finished prefill is kept for another engine to fetch."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must not be below max_num_seqs")
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                "without chunked_prefill, max_num_batched_tokens must not be below max_model_len"
            )
        room = self.usable_blocks * self.block_size
        if room < self.max_model_len:
            raise ValueError(
                f"a KV cache of {room} tokens for what runs does not hold one sequence of"
                f" max_model_len {self.max_model_len}"
            )

    @property
    def num_blocks(self) -> int:
        tokens = self.memory.kv_tokens if self.kv_tokens is None else self.kv_tokens
        return tokens // self.block_size

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can use while they run."""
        if self.max_running_tokens is None:
            return self.num_blocks
        return min(self.num_blocks, self.max_running_tokens // self.block_size)

    def replace(self, **changes: object) -> Profile:
        """A profile with some settings changed.

        Raises:
            ConfigError: a setting is out of bounds, or some contradict each other.
        """
        return convert(msgspec.to_builtins(self) | changes, Profile, "engine profile")


def load(name: str) -> Profile:
    """A profile by the name of one that comes with the simulator, or by the path of a file.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    path = PROFILES / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.yaml")))
        raise ConfigError(f"profile {name}: {error.strerror}; there are: {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    return convert(data, Profile, str(path))
