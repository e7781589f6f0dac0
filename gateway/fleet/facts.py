"""What an engine says about itself, whatever kind it is. Pure: pages in, facts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.fleet.engines.engine import Engine
from gateway.fleet.engines.numbers import positive
from gateway.fleet.engines.table import ENGINES
from gateway.types import EngineKind


@dataclass(slots=True, frozen=True)
class EngineFacts:
    """Attributes:
    kind: the engine.
    health_path: the page that tells cheaply whether it serves.
    models: ids that it serves, None when its list could not be read.
    max_model_len: by model, tokens; models of which it is not known are absent.
    capacity_tokens: size of the KV cache, None when the engine does not say.
    block_size: tokens of one cache block, None when the engine does not say.
    started: when its process started, unix seconds; tells a restart from a hiccup.
    adapters: by id of a LoRA adapter among the models, the model that it belongs to.
    flipped: it takes priorities the other way round than its kind usually does.
    cache_dtype: of the numbers in its KV cache, "" when it does not say.
    version: of the engine, "" when it does not say.
    chunk_tokens: prompt tokens that a step takes at most, None when the engine does not say.
    """

    kind: EngineKind
    health_path: str
    models: tuple[str, ...] | None = None
    max_model_len: Mapping[str, int] = field(default_factory=dict)
    capacity_tokens: int | None = None
    block_size: int | None = None
    started: float | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    flipped: bool = False
    cache_dtype: str = ""
    version: str = ""
    chunk_tokens: int | None = None


class ModelCard(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    parent: str | None = None


class ModelList(msgspec.Struct):
    """GET /v1/models, as far as it is looked at."""

    data: list[ModelCard]

    def ids(self, engine: Engine) -> tuple[str, ...]:
        """What requests to that engine may ask for."""
        spell = engine.adapter_name
        ids = dict.fromkeys(card.id for card in self.data if card.id)
        if spell is not None:
            ids |= dict.fromkeys(spell(base, name) for name, base in self.adapters.items())
        return tuple(ids)

    @property
    def lengths(self) -> dict[str, int]:
        lengths = ((card.id, positive(card.max_model_len)) for card in self.data)
        return {id: length for id, length in lengths if length is not None}

    @property
    def adapters(self) -> dict[str, str]:
        return {card.id: card.parent for card in self.data if card.id and card.parent}

    @property
    def kind(self) -> EngineKind | None:
        """None when no known engine signed the list."""
        owners = {card.owned_by for card in self.data if card.owned_by}
        return next((kind for kind, engine in ENGINES.items() if engine.owner in owners), None)
