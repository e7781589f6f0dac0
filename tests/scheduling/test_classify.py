import pytest

from gateway.scheduling.classify import classify, uncached_tokens
from gateway.types import Match, WorkClass
from tests.scheduling.virtual import ask


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (0, WorkClass.DECODE),
        (2047.9, WorkClass.DECODE),
        (2048, WorkClass.PREFILL),
        (1e6, WorkClass.PREFILL),
    ],
)
def test_the_class_follows_the_uncached_tokens(tokens: float, expected: WorkClass) -> None:
    assert classify(tokens, 2048) is expected


def test_uncached_tokens_are_those_at_one_backend() -> None:
    request = ask(tokens=1000, match=Match({"a": 9}, {"a": 900.7}))
    assert uncached_tokens(request, "a") == 100
    assert uncached_tokens(request, "b") == 1000


def test_a_match_beyond_the_estimate_leaves_nothing() -> None:
    assert uncached_tokens(ask(tokens=10, match=Match({"a": 1}, {"a": 32.0})), "a") == 0
