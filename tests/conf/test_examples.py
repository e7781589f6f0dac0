"""The example configs: they load, and the full one shows every option with its true default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway.config import (
    BackendConfig,
    DnsSource,
    FileSource,
    KubernetesSource,
    Settings,
    convert,
    load,
)
from policies.registry import build

CONF = Path(__file__).resolve().parents[2] / "conf"
FULL = CONF / "prefixgate.yaml"


def uncommented(text: str) -> str:
    """The text with its commented-out settings put into force: `#  key: value`, `#  - key: value`.

    Prose has one space after the #, settings have two, so that both can be told apart.
    """
    return re.sub(r"(?m)^( *)#(  +(?:- )?\w+:.*)$", r"\1\2", text)


def full() -> Any:
    text = FULL.read_text()
    # An empty list or mapping cannot be followed by its own entries.
    text = re.sub(r"\n(backends|  params|  file|  dns|  kubernetes): (\[\]|{})", r"\n\1:", text)
    return yaml.safe_load(uncommented(text))


def test_the_full_example_is_the_defaults() -> None:
    assert load(FULL) == Settings()


def test_the_full_example_shows_every_option_with_its_default() -> None:
    shown = full()
    [backend] = shown.pop("backends")
    params = shown["policy"].pop("params")
    sources = {name: shown["discovery"].pop(name) for name in ("file", "dns", "kubernetes")}
    defaults = msgspec.json.decode(msgspec.json.encode(Settings()))
    del defaults["backends"], defaults["policy"]["params"]
    for name in sources:
        del defaults["discovery"][name]
    assert shown == defaults
    url = backend["url"]
    assert backend == msgspec.to_builtins(BackendConfig(url=url))
    policy = build(Settings().policy.name, {})
    assert params == msgspec.to_builtins(policy.params)
    for source, required in (
        (FileSource, {"path"}),
        (DnsSource, {"host", "port"}),
        (KubernetesSource, {"service"}),
    ):
        [source_shown] = sources[source.__name__.removesuffix("Source").lower()]
        needed = {name: source_shown[name] for name in required}
        assert source_shown == msgspec.to_builtins(source(**needed))


def test_the_full_example_can_be_put_into_force_as_a_whole() -> None:
    settings = convert(full(), Settings, "example")
    assert [backend.url for backend in settings.backends] == ["http://gpu1:8000"]
    build(settings.policy.name, settings.policy.params)


def test_the_example_for_compose_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://redis:6379")
    assert load(CONF / "compose.yaml").redis.url is not None


def test_the_minimal_example_has_backends_and_nothing_else() -> None:
    settings = load(CONF / "minimal.yaml")
    assert [backend.url for backend in settings.backends] == [
        "http://gpu1:8000",
        "http://gpu2:8000",
    ]
    assert msgspec.structs.replace(settings, backends=[]) == Settings()
