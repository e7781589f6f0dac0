from loadtests.rivals.llm_d_sticky import LlmdSticky, LlmdStickyParams
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import counts, request

RATE = 15_928.0


def test_it_stays_for_eighteen_seconds() -> None:
    rival, held = LlmdSticky(LlmdStickyParams()), request(tokens=1000, held={"a": 800})
    just = [Engine("a", pending_tokens=17.9 * RATE), Engine("b")]
    assert rival.choose(held, just).backend == "a"
    over = [Engine("a", pending_tokens=18.1 * RATE), Engine("b")]
    assert rival.choose(held, over).backend == "b"
    never = LlmdSticky(LlmdStickyParams(max_ttft_penalty=0.0))
    assert never.choose(held, over).backend == "a"


def test_below_the_threshold_tokens_decide() -> None:
    rival, held = LlmdSticky(LlmdStickyParams()), request(tokens=1000, held={"a": 790})
    assert rival.choose(held, [Engine("a", pending_tokens=700.0), Engine("b")]).backend == "a"
    assert rival.choose(held, [Engine("a", pending_tokens=800.0), Engine("b")]).backend == "b"


def test_among_the_sticky_the_least_tokens_and_equals_draw() -> None:
    rival = LlmdSticky(LlmdStickyParams())
    held = request(tokens=1000, held={"a": 900, "b": 900, "c": 900})
    candidates = engines("abcd")
    candidates[0].pending_tokens = 1.0
    drawn = counts(lambda _: rival.choose(held, candidates).backend, 200)
    assert set(drawn) == {"b", "c"}
