from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.types import Match
from tests.scheduling.virtual import ask


def test_uncached_tokens_are_those_at_one_backend() -> None:
    request = ask(tokens=1000, match=Match({"a": 9}, {"a": 900.7}))
    assert uncached_tokens(request, "a") == 100
    assert uncached_tokens(request, "b") == 1000


def test_a_match_beyond_the_estimate_leaves_nothing() -> None:
    assert uncached_tokens(ask(tokens=10, match=Match({"a": 1}, {"a": 32.0})), "a") == 0


def test_the_anchor_is_the_last_block_that_is_held() -> None:
    request = ask(chain=b"block..1block..2block..3", match=Match({"a": 2}, {"a": 64.0}))
    assert anchor(request, "a") == b"block..2"
    assert anchor(request, "b") == b""
