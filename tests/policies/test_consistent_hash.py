from gateway.types import Reason
from policies.consistent_hash import ConsistentHash, ConsistentHashParams
from tests.policies.views import View, chain, counts, request, views


def policy(blocks: int = 4, bound: float = 1.25) -> ConsistentHash:
    return ConsistentHash(ConsistentHashParams(blocks=blocks, bound=bound))


def homes(ids: str) -> dict[int, str]:
    hashing, candidates = policy(), views(ids)
    return {
        number: hashing.choose(request(links=chain(str(number))), candidates).backend
        for number in range(1000)
    }


def test_R10_adding_a_backend_moves_few_prompts() -> None:
    before, with_fifth = homes("abcd"), homes("abcde")
    moved = [key for key, home in before.items() if with_fifth[key] != home]
    assert 100 < len(moved) <= 300
    assert {with_fifth[key] for key in moved} == {"e"}
    assert homes("abcd") == before


def test_the_key_ends_at_a_fixed_depth() -> None:
    hashing, candidates = policy(blocks=2), views("abcdefgh")
    beginning = ("system", "first turn")

    def home(*parts: str) -> str:
        return hashing.choose(request(links=chain(*parts)), candidates).backend

    assert home(*beginning) == home(*beginning, "second") == home(*beginning, "second", "third")
    others = {home("system", f"conversation {number}") for number in range(40)}
    assert len(others) > 4


def test_nobody_gets_more_than_the_bound() -> None:
    hashing, candidates = policy(bound=1.25), views("abcd")
    hot = request(links=chain("the same for all"))
    reasons = set()
    for _ in range(400):
        decision = hashing.choose(hot, candidates)
        reasons.add(decision.reason)
        [chosen] = [view for view in candidates if view.id == decision.backend]
        chosen.in_flight += 1
    most = max(view.in_flight for view in candidates)
    assert 120 <= most <= 126
    assert reasons == {Reason.HASH, Reason.SPILL}


def test_R11_prompts_without_a_block_go_by_load() -> None:
    hashing, candidates = policy(), views("abcd")
    spread = counts(lambda _: hashing.choose(request(), candidates).backend, 40)
    assert all(spread[id] >= 5 for id in "abcd")
    busy = [View("a", in_flight=9), View("b", in_flight=1)]
    decision = hashing.choose(request(), busy)
    assert (decision.backend, decision.reason) == ("b", Reason.LOAD)


def test_one_candidate() -> None:
    decision = policy().choose(request(links=chain("x")), views("a"))
    assert (decision.backend, decision.reason) == ("a", Reason.ONLY)


def test_explain_shows_what_was_compared() -> None:
    terms = policy().explain(request(links=chain("x")), views("abc", in_flight=4))
    decision = policy().choose(request(links=chain("x")), views("abc", in_flight=4))
    weights = [term["weight"] for term in terms]
    assert "abc"[weights.index(max(weights))] == decision.backend
    assert [term["most"] for term in terms] == [6, 6, 6]
