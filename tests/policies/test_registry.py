import ast
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError
from policies import registry
from policies.base import Policy
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams
from policies.registry import BUILT_IN, build, find, names
from policies.round_robin import RoundRobin
from tests.policies.views import request, views

ROOT = Path(__file__).parents[2]


class Cheapest(RoundRobin):
    """A user's own policy."""

    name = "cheapest"


def install(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Pretend that packages bring these (name, value) entry points and nothing else."""
    installed = [EntryPoint(name, value, registry.GROUP) for name, value in entries]

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == registry.GROUP
        return [entry for entry in installed if name is None or entry.name == name]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_built_in_policies_need_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert names() == [
        "prefix_affinity",
        "least_load",
        "power_of_two",
        "round_robin",
        "consistent_hash",
        "session",
    ]
    for name in names():
        policy = build(name, {})
        assert policy.name == name
        assert policy.choose(request(), views("ab")).backend in ("a", "b")
        assert len(policy.explain(request(), views("ab"))) == 2


def test_the_entry_points_are_those_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][registry.GROUP]
    assert declared == {p.name: f"{p.__module__}:{p.__qualname__}" for p in BUILT_IN}


@pytest.mark.parametrize("policy", BUILT_IN)
def test_each_policy_carries_its_page(policy: type[Policy]) -> None:
    page = policy.__doc__ or ""
    for part in ("What.", "Inputs.", "Parameters.", "Example.", "Trade-offs."):
        assert part in page


@pytest.mark.parametrize("policy", BUILT_IN)
def test_each_parameter_is_read(policy: type[Policy]) -> None:
    """F02: no dead options."""
    [source] = [path for path in (ROOT / "policies").glob("*.py") if policy.name == path.stem]
    read = {
        node.attr
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert set(policy.params_type.__struct_fields__) <= read


def test_params_are_checked_and_kept() -> None:
    built = build("prefix_affinity", {"eta": 0.5})
    assert isinstance(built, PrefixAffinity)
    assert built.params == PrefixAffinityParams(eta=0.5)


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("prefix_affinity", {"etta": 1}, "etta"),
        ("prefix_affinity", {"eta": -1}, "eta"),
        ("prefix_affinity", {"eta": "high"}, "eta"),
        ("consistent_hash", {"bound": 0.5}, "bound"),
        ("round_robin", {"weights": []}, "weights"),
    ],
)
def test_wrong_params_are_named(name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"policy {name}: .*{says}"):
        build(name, params)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'fastest'.*prefix_affinity.*session"):
        build("fastest", {})


def test_a_users_policy_loads_from_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("cheapest", f"{__name__}:Cheapest"))
    assert find("cheapest") is Cheapest
    assert names()[-1] == "cheapest"
    assert build("cheapest", {}).choose(request(), views("ab")).backend == "a"


def test_a_package_cannot_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("round_robin", f"{__name__}:Cheapest"))
    assert find("round_robin") is RoundRobin
    assert names().count("round_robin") == 1


def test_two_packages_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("cheapest", f"{__name__}:Cheapest"), ("cheapest", "other:Cheapest"))
    with pytest.raises(ConfigError, match=r"cheapest.*several packages.*other:Cheapest"):
        find("cheapest")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:Cheapest", "no_such_module"),
        (f"{__name__}:NoSuchClass", "NoSuchClass"),
        (f"{__name__}:ROOT", "not a policy class"),
        ("gateway.types:Match", "has no name, late_binding, params_type, choose, placed, explain"),
    ],
)
def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch, value: str, says: str) -> None:
    install(monkeypatch, ("cheapest", value))
    with pytest.raises(ConfigError, match=f"policy cheapest: .*{says}"):
        find("cheapest")
