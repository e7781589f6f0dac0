from __future__ import annotations

import pytest

from gateway.estimates.outputs import ENOUGH, TYPICAL_OUTPUT, Outputs
from gateway.types import Chain


def chain(*blocks: int) -> Chain:
    """Blocks of which each number stands for all before it too."""
    return b"".join(block.to_bytes(8, "little") for block in blocks)


TOOL = chain(*range(1, 9))
CHAT = chain(*range(101, 141))


def learn(
    outputs: Outputs,
    links: Chain,
    tokens: int,
    times: int = ENOUGH,
    *,
    tenant: str = "t",
    cap: int | None = None,
) -> None:
    for _ in range(times):
        outputs.learn("m", "chat", tenant, links, cap, tokens)


def expect(
    outputs: Outputs, links: Chain = b"", *, tenant: str = "t", cap: int | None = None
) -> float:
    return outputs.expect("m", "chat", tenant, links, cap)


def test_a_typical_answer_until_something_is_known() -> None:
    outputs = Outputs()
    assert expect(outputs) == TYPICAL_OUTPUT
    assert expect(outputs, cap=16) == 16
    learn(outputs, TOOL, 5, ENOUGH - 1)
    assert expect(outputs, TOOL) == TYPICAL_OUTPUT


def test_the_prefix_decides_before_the_client_and_the_model() -> None:
    outputs = Outputs()
    learn(outputs, TOOL, 6, 20)
    learn(outputs, CHAT, 400, 20)
    assert expect(outputs, TOOL + chain(999)) == 6
    assert expect(outputs, CHAT + chain(999)) == 400
    learn(outputs, b"", 50, 40, tenant="other")
    assert expect(outputs, tenant="other") == 50
    assert outputs.expect("n", "chat", "t", b"", None) == TYPICAL_OUTPUT


def test_an_answer_teaches_what_it_was_expected_by_and_nothing_coarser() -> None:
    """New prompts of a client are like its other new prompts, not like its largest program."""
    outputs = Outputs()
    for number in range(20):
        learn(outputs, chain(5_000 + number), 300, 1)
    learn(outputs, TOOL, 6, 1_000)
    assert expect(outputs, TOOL) == 6
    assert expect(outputs, chain(9_999)) == pytest.approx(300, rel=0.25)
    learn(outputs, b"", 40, 1_000)
    assert expect(outputs, chain(9_999)) == pytest.approx(40, rel=0.1)
    assert expect(outputs, tenant="new") == pytest.approx(300, rel=0.1), "the model's"


def test_the_deepest_prefix_known_well_enough_counts() -> None:
    outputs = Outputs()
    common = chain(1, 2)
    for tail in (10, 20):
        learn(outputs, common + chain(*range(tail, tail + 6)), tail, 20)
    assert expect(outputs, common + chain(*range(10, 16))) == 10
    assert expect(outputs, common + chain(*range(20, 26))) == 20
    assert expect(outputs, common + chain(*range(30, 36))) == pytest.approx(15, rel=0.05)


def test_prompts_that_nobody_shares_leave_one_entry() -> None:
    outputs = Outputs()
    learn(outputs, b"", 10, 1)
    before = len(outputs)
    for number in range(50):
        learn(outputs, chain(*range(1_000 * number, 1_000 * number + 64)), 10, 1)
    assert len(outputs) == before + 50


def test_entries_are_bounded_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.estimates.outputs.MAX_GROUPS", 20)
    monkeypatch.setattr("gateway.estimates.outputs.MAX_CLIENTS", 10)
    outputs = Outputs()
    for number in range(200):
        learn(outputs, TOOL, 7, 1)
        learn(outputs, chain(10_000 + number), 500, 1, tenant=f"t{number}")
    assert len(outputs) == 30
    assert expect(outputs, TOOL) == 7


def test_the_mean_is_kept_within_the_cap() -> None:
    outputs = Outputs()
    learn(outputs, TOOL, 10, 30)
    learn(outputs, TOOL, 1_000, 10)
    mean = (30 * 10 + 10 * 1_000) / 40
    assert expect(outputs, TOOL) == pytest.approx(mean, rel=0.2)
    # Three of four end by themselves: not the mean capped, but the mean of what is capped.
    assert expect(outputs, TOOL, cap=100) == pytest.approx(0.75 * 10 + 0.25 * 100, rel=0.1)
    assert expect(outputs, TOOL, cap=4) == 4


def test_answers_cut_at_the_cap_only_raise_the_estimate() -> None:
    outputs = Outputs()
    learn(outputs, CHAT, 400, 20)
    learn(outputs, CHAT, 1, 50, cap=1)
    assert expect(outputs, CHAT) == 400, "warming calls say nothing about answers"
    learn(outputs, CHAT, 800, 20, cap=800)
    assert 550 < expect(outputs, CHAT) < 650
    other = Outputs()
    learn(other, TOOL, 128, 20, cap=128)
    assert expect(other, TOOL, cap=128) == 128


def test_one_runaway_counts_for_little() -> None:
    outputs = Outputs()
    learn(outputs, TOOL, 10, 50)
    learn(outputs, TOOL, 32_000, 1)
    assert expect(outputs, TOOL) < 12


def test_a_change_of_habit_is_learnt() -> None:
    outputs = Outputs()
    learn(outputs, TOOL, 10, 1_000)
    learn(outputs, TOOL, 60, 1_000)
    assert expect(outputs, TOOL) == pytest.approx(60, rel=0.1)


def test_answers_without_tokens_teach_nothing() -> None:
    outputs = Outputs()
    learn(outputs, TOOL, 0, 10)
    assert len(outputs) == 0
