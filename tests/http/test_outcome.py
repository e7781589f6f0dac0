from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http.outcome import tokens_of_work
from gateway.types import Outcome


@pytest.mark.parametrize(
    ("phase", "handed_over", "outcome", "tokens"),
    [
        ("connect", True, Outcome.CANCELLED, 7),
        ("connect", False, Outcome.CANCELLED, 0),
        ("connect", True, Outcome.UPSTREAM_ERROR, 0),
        ("prefill", True, Outcome.CANCELLED, 7),
        ("queue", False, Outcome.CANCELLED, 0),
    ],
)
def test_a_prompt_counts_that_was_computed_for_a_client_that_left(
    phase: str, handed_over: bool, outcome: Outcome, tokens: int
) -> None:
    context: Any = SimpleNamespace(
        phase=phase,
        handover=object() if handed_over else None,
        relay=None,
        record=SimpleNamespace(outcome=outcome, prompt_tokens=7),
    )
    assert tokens_of_work(context) == tokens
