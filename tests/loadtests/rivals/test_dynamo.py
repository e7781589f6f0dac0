from loadtests.rivals.dynamo import Dynamo, DynamoParams
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import counts, request


def test_the_example_of_its_documentation() -> None:
    """Ten blocks to prefill everywhere; 2, 5, 8 of them cached; 10, 5, 9 blocks occupied."""
    rival = Dynamo(DynamoParams())
    candidates = [
        Engine(id, context_tokens=occupied * 100.0 - 1000.0)
        for id, occupied in zip("abc", (10, 5, 9), strict=True)
    ]
    decision = rival.choose(request(held={"a": 200, "b": 500, "c": 800}), candidates)
    assert decision.scores == (1800.0, 1000.0, 1100.0)
    assert decision.backend == "b"


def test_occupied_blocks_drive_a_prompt_from_its_cache() -> None:
    rival = Dynamo(DynamoParams())
    candidates = [Engine("a", context_tokens=1001.0, in_flight=1, decoding=1), Engine("b")]
    assert rival.choose(request(tokens=1000, held={"a": 1000}), candidates).backend == "b"


def test_credit_decays_with_excess_prefill() -> None:
    rival = Dynamo(DynamoParams(overlap_score_credit_decay=1.0))
    candidates = [Engine("a", pending_tokens=1000.0), Engine("b")]
    [a, b] = rival.explain(request(tokens=1000, held={"a": 800}), candidates)
    assert (a["prefill"], b["prefill"]) == (1600.0, 1000.0)


def test_temperature_spreads_by_relative_cost() -> None:
    candidates = [Engine("a"), Engine("b", context_tokens=500.0), Engine("c", context_tokens=1e6)]

    def drawn(temperature: float) -> dict[str, int]:
        rival = Dynamo(DynamoParams(router_temperature=temperature))
        return counts(lambda _: rival.choose(request(), candidates).backend, 1000)

    assert drawn(0.0) == {"a": 1000}
    warm = drawn(0.5)
    assert abs(warm["a"] - warm["b"]) < 100
    assert 30 < warm["c"] < 100


def test_equals_draw_at_any_temperature() -> None:
    for temperature in (0.0, 1.0):
        rival = Dynamo(DynamoParams(router_temperature=temperature))
        candidates = engines("abcd")
        drawn = counts(lambda _: rival.choose(request(), candidates).backend, 400)  # noqa: B023
        assert all(70 < drawn[id] < 130 for id in "abcd")
