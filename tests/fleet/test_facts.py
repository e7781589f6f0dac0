from __future__ import annotations

import pytest

from gateway.fleet.engines.table import ENGINES
from gateway.fleet.facts import ModelList
from gateway.fleet.page import Page
from gateway.types import EngineKind
from tests.fleet.engine import model_list, ok

VLLM, SGLANG = ENGINES[EngineKind.VLLM], ENGINES[EngineKind.SGLANG]
ADAPTERS = b"""{"data": [
    {"id": "base", "owned_by": "sglang", "max_model_len": 4096, "parent": null},
    {"id": "lora", "owned_by": "sglang", "max_model_len": null, "parent": "base"},
    {"id": "base", "max_model_len": -1}, {"id": ""}
]}"""


def read(answer: tuple[int, bytes]) -> ModelList:
    models = Page("/v1/models", *answer).read(ModelList)
    assert models is not None
    return models


def test_model_list() -> None:
    models = read(model_list("base", "lora-1", "base", "", owner="vllm", length=4096))
    assert models.ids(VLLM) == ("base", "lora-1")
    assert models.kind is EngineKind.VLLM
    assert models.lengths["lora-1"] == 4096
    assert models.adapters == {}


def test_an_unsigned_model_list() -> None:
    models = read(ok(b'{"data":[{"id":"m"},{"id":"n","owned_by":"me"}]}'))
    assert models.kind is None
    assert models.lengths == {}


def test_adapters_and_how_each_engine_calls_them() -> None:
    models = read(ok(ADAPTERS))
    assert models.adapters == {"lora": "base"}
    assert models.ids(VLLM) == ("base", "lora")
    assert models.ids(SGLANG) == ("base", "lora", "base:lora")
    assert models.lengths == {"base": 4096}


@pytest.mark.parametrize(
    "broken",
    [
        (200, b""),
        (200, b"not json"),
        (200, b"[" * 100_000),
        (200, b"\xff"),
        (500, b'{"data":[]}'),
        (200, b'{"data":{}}'),
        (200, b'{"data":[{"id":1}]}'),
    ],
)
def test_broken_lists_say_nothing(broken: tuple[int, bytes]) -> None:
    assert Page("/v1/models", *broken).read(ModelList) is None
