from __future__ import annotations

import pytest

from gateway.config import ConfigError, PolicyConfig, Scheduling
from loadtests.replay.arm import PLAIN, UNLEARNED, find
from loadtests.replay.knowledge import LIVE, Knowledge, Output
from loadtests.rivals.registry import RIVALS

OWN = Scheduling(gate=0.25)


def test_the_gateways_policies_run_under_its_scheduling() -> None:
    arm = find("prefix_affinity", OWN)
    assert arm.scheduling is OWN
    assert arm.policy().name == "prefix_affinity"
    assert arm.policy() is not arm.policy(), "state is not carried from run to run"
    assert find("prefix_affinity+plain", OWN).scheduling is PLAIN
    assert find("prefix_affinity+gate", OWN).scheduling is OWN


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_send_on_at_once_unless_they_are_put_behind_the_gate(name: str) -> None:
    arm = find(name, OWN)
    assert arm.scheduling is PLAIN
    assert type(arm.policy()) is RIVALS[name]
    assert find(f"{name}+gate", OWN).scheduling is OWN


def test_parameters_and_settings_can_be_changed() -> None:
    arm = find("prefix_affinity?eta=0.5&scheduling.gate=null&scheduling.target.seconds=4", OWN)
    assert arm.policy().params.eta == 0.5
    assert arm.scheduling.gate is None
    assert arm.scheduling.target.seconds == 4
    assert arm.scheduling.order == OWN.order


def test_configured_parameters_are_those_of_the_policy_they_are_for() -> None:
    configured = PolicyConfig(name="prefix_affinity", params={"eta": 0.5, "omega": 2.0})
    arm = find("prefix_affinity?omega=3", OWN, configured)
    assert arm.params.eta == 0.5
    assert arm.params.omega == 3
    assert find("round_robin", OWN, configured).policy().name == "round_robin"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing", "nothing"),
        ("round_robin+fast", r"unknown suffix \+fast"),
        ("prefix_affinity?colour=1", "colour"),
        ("prefix_affinity?eta=-1", "eta"),
        ("prefix_affinity?eta", "eta"),
        ("prefix_affinity?scheduling.nothing=1", "nothing"),
        ("prefix_affinity?scheduling.gate.x=1", r"scheduling\.gate\.x"),
        ("prefix_affinity?scheduling.gate=-1", "gate"),
    ],
)
def test_what_is_not_known_or_allowed_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        find(text, OWN)


def test_what_the_gateway_knows_can_be_changed() -> None:
    arm = find("prefix_affinity?knows.output=told&knows.index_capacity=0.5", OWN)
    assert arm.knowledge == Knowledge(output=Output.TOLD, index_capacity=0.5)
    assert find("prefix_affinity", OWN).knowledge == find("lmetric+gate", OWN).knowledge == LIVE
    with pytest.raises(ConfigError, match="output"):
        find("prefix_affinity?knows.output=guessed", OWN)


def test_rivals_learn_no_speeds_unless_they_are_told_to() -> None:
    assert find("lmetric", OWN).knowledge == UNLEARNED
    assert find("lmetric?knows.rates=true", OWN).knowledge.rates
