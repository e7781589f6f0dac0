from collections.abc import Sequence

import pytest

from gateway.types import Reason
from loadtests.rivals.registry import RIVALS
from policies import registry
from policies.base import Policy, RouteRequest
from tests.loadtests.rivals.engines import Engine, engines, place
from tests.policies.views import chain, request


def build(name: str) -> Policy:
    rival = RIVALS[name]
    return rival(rival.params_type())


every_rival = pytest.mark.parametrize("name", RIVALS)


def traffic() -> Sequence[RouteRequest]:
    """Conversations that share a system prompt, one stranger, one without a key, one empty."""
    turns = [
        request(links=chain("system", f"c{number % 5}", *"xyz"[: number // 5]), now=float(number))
        for number in range(15)
    ]
    held = request(links=chain("system", "c0"), held={"a": 900}, now=20.0)
    return [
        *turns,
        held,
        request(links=chain("other"), now=21.0),
        request(now=22.0),
        request(tokens=0, now=23.0),
    ]


def test_names_are_the_rivals_own_and_not_the_gateways() -> None:
    assert all(rival.name == name for name, rival in RIVALS.items())
    assert not set(RIVALS) & set(registry.names())


@every_rival
def test_every_rival_routes_what_comes(name: str) -> None:
    rival, candidates = build(name), engines("abcd", in_flight=3, decoding=1, pending_tokens=500.0)
    for each in traffic():
        decision = rival.choose(each, candidates)
        assert decision.backend in set("abcd")
        assert len(decision.scores) in (0, 4)
        terms = rival.explain(each, candidates)
        assert len(terms) == 4
        assert all(isinstance(value, int | float) for term in terms for value in term.values())
        assert place(rival, each, candidates) in set("abcd")


@every_rival
def test_one_candidate(name: str) -> None:
    rival = build(name)
    for each in traffic():
        decision = rival.choose(each, [Engine("only")])
        assert decision.backend == "only"
        assert decision.reason in (Reason.ONLY, Reason.SPILL)


@every_rival
def test_a_rival_repeats_itself(name: str) -> None:
    def decisions() -> list[str]:
        rival, candidates = build(name), engines("abcd", in_flight=2)
        return [place(rival, each, candidates) for each in list(traffic()) * 4]

    assert decisions() == decisions()


@every_rival
def test_explaining_changes_nothing(name: str) -> None:
    def decisions(explained: bool) -> list[str]:
        rival, candidates = build(name), engines("abcd", in_flight=2)
        chosen = []
        for each in list(traffic()) * 4:
            if explained:
                rival.explain(each, candidates)
            chosen.append(place(rival, each, candidates))
        return chosen

    assert decisions(explained=True) == decisions(explained=False)


SEEDED = [name for name, rival in RIVALS.items() if "seed" in rival.params_type.__struct_fields__]


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_draw_differently(name: str) -> None:
    """Strangers to idle backends are equal everywhere, so only the draw decides."""
    rival = RIVALS[name]

    def decisions(seed: int) -> list[str]:
        policy, candidates = rival(rival.params_type(**{"seed": seed})), engines("abcdefgh")
        return [policy.choose(request(), candidates).backend for _ in range(40)]

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)


@every_rival
def test_a_backend_that_comes_and_goes(name: str) -> None:
    rival = build(name)
    ids = ("abc", "abcd", "bd", "abcd")
    for round_, now in zip(ids, range(4), strict=True):
        each = request(links=chain("system", "c0"), held={"a": 600}, now=float(now))
        assert place(rival, each, engines(round_, in_flight=1)) in set(round_)
