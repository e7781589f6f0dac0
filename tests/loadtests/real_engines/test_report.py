from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtests.real_engines.arm import Arm
from loadtests.real_engines.counters import Counters, Estimate
from loadtests.real_engines.exchange import Exchange
from loadtests.real_engines.report import checks, comparison_table, engines_table, turns_table
from tests.loadtests.real_engines.samples import exchange

BLOCKS = {"a": 128, "b": 128}
HOME = [
    exchange(0, range(600), [1, 2], reason="load"),
    exchange(0, range(900, 1600), [1, 2], conversation="chat-1", backend="b", reason="load"),
    exchange(1, [*range(600), 1, 3], [4], matched=256, cached=512),
    exchange(1, [*range(900, 1600), 8], [4], conversation="chat-1", backend="b", cached=640),
]


def arm(exchanges: Sequence[Exchange], policy: str = "prefix_affinity") -> Arm:
    """With counters that agree with the answers."""
    made = Arm(policy, exchanges, {"a": Counters(0, 0), "b": Counters(0, 0)}, Estimate(0, 0.0))
    counters = {backend: made.told(backend) for backend in made.counters}
    return replace(made, counters=counters, estimate=Estimate(sum(x.cached for x in exchanges), 1))


CONTROL = arm(HOME[:2], "round_robin")


def failures(of: Arm) -> list[str]:
    return [check.text for check in checks(CONTROL, of, BLOCKS) if not check.passed]


def test_a_run_as_it_should_be_passes() -> None:
    assert failures(arm(HOME)) == []


def test_a_turn_elsewhere_is_listed_with_its_reason() -> None:
    stray = replace(HOME[2], backend="b", reason="spill", cached=0)
    assert failures(arm([*HOME[:2], stray, HOME[3]])) == [
        "1 of 2 second and later turns went home",
        "chat-0, turn 2: at b (spill)",
    ]


def test_a_turn_that_follows_a_stray_is_none_of_its_home() -> None:
    stray = replace(HOME[2], backend="b", reason="spill", cached=0)
    third = exchange(2, [*range(600), 1, 3, 5], [4], backend="b", cached=512)
    found = arm([*HOME[:2], stray, third])
    assert [(one.turn, one.reason) for one in found.strays()] == [(1, "spill"), (2, "prefix")]
    assert list(found.stayed()) == [(stray, third)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"counters": {"a": Counters(1203, 512), "b": Counters(1401, 640)}}, "engines' counters"),
        ({"estimate": Estimate(7, 0.0)}, "the gateway's metrics"),
    ],
)
def test_counts_that_differ_are_told(change: dict[str, object], text: str) -> None:
    (told,) = failures(replace(arm(HOME), **change))
    assert text in told


def test_cached_tokens_that_nobody_can_explain_fail() -> None:
    odd = replace(HOME[2], cached=384)
    assert failures(arm([*HOME[:2], odd, HOME[3]])) == [
        "1 of 2 turns found cached exactly what block arithmetic says"
    ]


def test_an_idle_engine_proves_nothing() -> None:
    found = failures(arm([one for one in HOME if one.backend == "a"]))
    assert found == ["every engine had conversations"]


def test_the_tables_tell_totals() -> None:
    made = arm(HOME)
    total = turns_table(made).splitlines()[-1]
    assert total.split() == ["all", "4", "2,603", "256", "1,152", "4.50"]
    assert comparison_table(made).splitlines()[-1].split()[-2:] == ["1,152", "576"]
    assert "round_robin" in engines_table([CONTROL, made])
