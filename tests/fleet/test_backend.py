from __future__ import annotations

import pytest

from gateway.config import BackendConfig, BreakerConfig, ConfigError, convert
from gateway.fleet.backend import ID_DIGITS, Backend, BackendPatch, BackendState, Source
from gateway.fleet.facts import EngineFacts
from gateway.types import EngineKind, Role

FACTS = EngineFacts(EngineKind.SGLANG, "/ready", ("m", "n"), {"m": 10}, 5000, 64)


def backend(url: str = "http://gpu1:8000", **fields: object) -> Backend:
    return Backend(
        convert({"url": url, **fields}, BackendConfig, "test"),
        Source.CONFIG,
        lambda: 0.0,
        BreakerConfig(),
    )


def test_the_id_is_stable_short_and_says_nothing() -> None:
    one = backend("http://gpu1:8000")
    assert one.id == "468c1ad27a36"  # the same in every version: replicas and clients keep it
    assert len(one.id) == ID_DIGITS
    assert backend("HTTP://GPU1:8000/").id == one.id
    assert backend("http://gpu1:8000/a").id != one.id
    assert backend("https://gpu1:8000").id != one.id


def test_what_is_configured_goes_before_what_is_found() -> None:
    found = backend()
    assert (found.kind, found.models, found.capacity_tokens) == (None, (), None)
    found.facts = FACTS
    assert (found.kind, found.models, found.capacity_tokens) == (
        EngineKind.SGLANG,
        ("m", "n"),
        5000,
    )
    fixed = backend(kind="vllm", models=["x"], capacity_tokens=7, role="prefill")
    fixed.facts = FACTS
    assert (fixed.kind, fixed.models, fixed.capacity_tokens) == (EngineKind.VLLM, ("x",), 7)
    assert fixed.role is Role.PREFILL


def test_draining_hides_the_condition() -> None:
    one = backend()
    one.facts = FACTS
    one.condition = BackendState.HEALTHY
    assert one.serves("m")
    assert not one.serves("x")
    one.draining = True
    assert one.state is BackendState.DRAINING
    assert one.cause == "taken out through the admin API"
    assert not one.serves("m")
    one.draining, one.unlisted = False, True
    assert one.state is BackendState.DRAINING
    assert one.cause == "no source lists it any more"
    one.condition = BackendState.REMOVED
    assert one.state is BackendState.REMOVED


@pytest.mark.parametrize(
    "body", [{"models": []}, {"capacity_tokens": 0}, {"role": "x"}, {"url": "http://other"}]
)
def test_patch_refuses(body: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        convert(body, BackendPatch, "body")


@pytest.mark.parametrize("models", [[], [""], ["m", ""], ["a\nb"], ["\x1b[2J"], ["\u202e"]])
def test_models_must_have_names(models: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        backend(models=models)
    assert caught.value.field == "models"
