from __future__ import annotations

import pytest

from gateway.estimates.errors import Errors, ErrorTotals, Estimate


def test_every_estimate_starts_at_nothing() -> None:
    assert Errors().snapshot() == {each: ErrorTotals() for each in Estimate}


def test_errors_are_relative_to_what_came() -> None:
    errors = Errors()
    errors.note(Estimate.FIRST_TOKEN, 3.0, 2.0)
    errors.note(Estimate.FIRST_TOKEN, 1.0, 4.0)
    totals = errors.snapshot()[Estimate.FIRST_TOKEN]
    assert totals == ErrorTotals(2, 4.0, 6.0, 0.5 - 0.75, 0.5 + 0.75)
    assert errors.snapshot()[Estimate.OUTPUT_TOKENS] == ErrorTotals()


def test_small_values_are_measured_against_a_floor() -> None:
    errors = Errors()
    errors.note(Estimate.CACHED_TOKENS, 32.0, 0.0)
    assert errors.snapshot()[Estimate.CACHED_TOKENS].absolute == pytest.approx(0.5)


def test_a_snapshot_does_not_change() -> None:
    errors = Errors()
    before = errors.snapshot()
    errors.note(Estimate.PROMPT_TOKENS, 100.0, 90.0)
    assert before[Estimate.PROMPT_TOKENS].count == 0
