"""How many bytes of KV cache a prompt has: what a handover moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.config import ConfigError, KvCache

_BYTES = {
    "float32": 4.0,
    "float": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,  # a scale of one byte for each 16
}
"""Of one number, by the name of its type."""
_DS_MLA = "fp8_ds_mla"
_DS_MLA_BYTES = 656
"""Of one token and layer: 512 numbers in 8 bits, four scales of 4 bytes, 64 numbers in 16 bits."""
_NO_CACHE = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "mlp", "moe"})
"""Kinds of layers whose state does not grow with the prompt."""
_WINDOWED = frozenset({"sliding_attention", "local_attention", "chunked_attention"})


class KvShape(msgspec.Struct, frozen=True, kw_only=True):
    """
    Attributes:
        per_token: bytes of each token, in the layers that keep all of them.
        per_recent: bytes of each of the last tokens, in the layers that keep no others.
        recent: how many these layers keep.
    """

    per_token: float
    per_recent: float = 0.0
    recent: int = 0

    def bytes(self, tokens: float, held: float = 0.0) -> float:
        """Size of what has to be moved.

        Args:
            tokens: of the prompt.
            held: how many of them, from the first on, are there already.
        """
        lacking = max(0.0, tokens - held)
        return self.per_token * lacking + self.per_recent * min(lacking, self.recent)


def shape_of(settings: KvCache, model: str) -> KvShape:
    """A model's, as the settings give it. Reads the model's config.json where they name one.

    Args:
        model: whose settings they are.

    Raises:
        ConfigError: that file cannot be read, or does not tell enough.
    """
    if settings.bytes_per_token is not None:
        return KvShape(per_token=settings.bytes_per_token)
    if settings.config is not None:
        return _from_file(Path(settings.config), settings.dtype, f"disagg.models.{model}.config")
    assert settings.layers is not None  # the settings were checked
    if settings.latent_dim is not None:
        numbers = settings.latent_dim
    else:
        assert settings.kv_heads is not None
        assert settings.head_dim is not None
        numbers = 2 * settings.kv_heads * settings.head_dim
    return KvShape(per_token=settings.layers * _layer_bytes(numbers, settings.dtype, "bfloat16"))


def _from_file(path: Path, dtype: str, field: str) -> KvShape:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{field}: {path} cannot be read: {error.strerror}", field=field
        ) from None
    try:
        return shape_in(text, dtype)
    except ValueError as error:
        raise ConfigError(f"{field}: {path}: {error}", field=field) from None


def shape_in(text: bytes, dtype: str = "auto") -> KvShape:
    """A model's, of its Hugging Face config.json.

    Args:
        dtype: of the cache, as in the settings.

    Raises:
        ValueError: no JSON object, or something in it that is needed is missing or no number.
    """
    try:
        config = msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise ValueError(f"not a JSON object: {error}") from None
    inner = config.get("text_config")
    # What a model for more than text says of its text part holds, the rest is for all parts.
    config = {**config, **inner} if isinstance(inner, dict) else config
    own = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    per_layer = _layer_bytes(_numbers(config), dtype, own)
    growing, windowed = _layers(config)
    return KvShape(
        per_token=per_layer * growing,
        per_recent=per_layer * windowed,
        recent=_count(config, "sliding_window", "attention_chunk_size") if windowed else 0,
    )


def _numbers(config: Mapping[str, Any]) -> int:
    """Numbers in the cache of one token and layer."""
    if config.get("kv_lora_rank") is not None:
        return _count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")
    heads = ("num_attention_heads", "n_head", "num_heads")
    kv_heads = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    if any(config.get(name) is not None for name in kv_heads):
        kept = _count(config, *kv_heads)
    else:
        kept = 1 if config.get("multi_query") is True else _count(config, *heads)
    if any(config.get(name) is not None for name in ("head_dim", "kv_channels")):
        size = _count(config, "head_dim", "kv_channels")
    else:
        size = _count(config, "hidden_size", "n_embd", "d_model") // _count(config, *heads)
    return 2 * kept * size


def _layers(config: Mapping[str, Any]) -> tuple[int, int]:
    """Layers that keep all tokens, and layers that keep the last ones only."""
    count = _count(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str):
        # Without a list a window is all layers' or none's. Where nothing says that it is used, it
        # is not: what is moved is then taken for too much, not for too little.
        windowed = count if config.get("sliding_window") and _uses_window(config) else 0
        return count - windowed, windowed
    kept = [kind for kind in kinds if kind not in _NO_CACHE]
    windowed = sum(kind in _WINDOWED for kind in kept)
    return len(kept) - windowed, windowed


def _uses_window(config: Mapping[str, Any]) -> bool:
    return config.get("use_sliding_window", config.get("model_type") == "mistral") is True


def _layer_bytes(numbers: int, dtype: str, own: object) -> float:
    """Args:
    own: the model's type, for a cache whose own is "auto".
    """
    if dtype == _DS_MLA:
        return _DS_MLA_BYTES
    name = own if dtype == "auto" else dtype
    try:
        return numbers * _BYTES[str(name)]
    except KeyError:
        known = ", ".join(_BYTES)
        raise ValueError(f"dtype: got {name!r}, expected one of {known}") from None


def _count(config: Mapping[str, Any], *names: str) -> int:
    """The first of the members that is there."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected a whole number from 1")
        return value
    raise ValueError(f"none of {', '.join(names)} is there")
