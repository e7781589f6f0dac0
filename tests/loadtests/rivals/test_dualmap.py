from msgspec.structs import replace

from loadtests.rivals.dualmap import DualMap, DualMapParams
from policies.base import RouteRequest
from tests.loadtests.rivals.engines import Engine, engines, place
from tests.policies.views import chain, request

IDS = "abcdefgh"


def homes(rival: DualMap, prompt: RouteRequest, candidates: list[Engine]) -> list[Engine]:
    terms = rival.explain(prompt, candidates)
    return [each for each, term in zip(candidates, terms, strict=True) if term["home"]]


def pair(prompt: RouteRequest, **facts: float) -> tuple[DualMap, list[Engine], Engine, Engine]:
    rival, candidates = DualMap(DualMapParams()), engines(IDS, **facts)
    one, other = homes(rival, prompt, candidates)
    return rival, candidates, one, other


def test_two_homes_and_the_one_that_holds_more() -> None:
    prompt = request(tokens=1000, links=chain("x", "1"))
    rival, candidates, one, other = pair(prompt)
    one.pending_tokens = 20_000.0
    assert rival.choose(prompt, candidates).backend == other.id
    held = request(tokens=1000, links=chain("x", "1"), held={one.id: 500, "z": 1000})
    assert rival.choose(held, candidates).backend == one.id


def test_the_target_sends_it_to_the_other_home() -> None:
    links = chain("x", "1")
    rival, candidates, one, other = pair(request(links=links))
    held = request(tokens=1000, links=links, held={one.id: 1000}, now=7.0)
    one.pending_tokens = 49_000.0
    assert rival.choose(held, candidates).backend == one.id
    one.pending_tokens = 51_000.0
    assert rival.choose(held, candidates).backend == other.id
    assert rival.choose(replace(held, deadline=17.0), candidates).backend == one.id
    one.pending_tokens = 49_000.0
    assert rival.choose(replace(held, deadline=9.0), candidates).backend == other.id


def test_only_two_backends_ever_serve_a_prefix() -> None:
    rival, candidates = DualMap(DualMapParams()), engines(IDS)
    used = set()
    for _ in range(50):
        chosen = place(rival, request(links=chain("x")), candidates)
        used.add(chosen)
        [candidate] = [each for each in candidates if each.id == chosen]
        candidate.pending_tokens += 10_000.0
    assert len(used) == 2


def test_a_beginning_that_many_share_is_hashed_further() -> None:
    rival, candidates = DualMap(DualMapParams()), engines(IDS)
    prompts = [request(links=chain("system", f"c{number}", "1")) for number in range(200)]
    for prompt in prompts:
        place(rival, prompt, candidates)
    pairs = {tuple(each.id for each in homes(rival, prompt, candidates)) for prompt in prompts}
    assert len(pairs) > 15
    # The conversation, not its turns, is what has a home.
    turn = request(links=chain("system", "c5", "1", "2"))
    assert homes(rival, turn, candidates) == homes(rival, prompts[5], candidates)


def test_what_is_no_longer_recent_is_not_shared() -> None:
    rival, candidates = DualMap(DualMapParams(recent_requests=10)), engines(IDS)
    short, long = request(links=chain("s", "x", "1")), request(links=chain("s", "y", "1"))
    for _ in range(10):
        place(rival, short, candidates)
    assert homes(rival, short, candidates) != homes(rival, long, candidates)
    for number in range(10):
        place(rival, request(links=chain(f"other{number}")), candidates)
    assert homes(rival, short, candidates) == homes(rival, long, candidates)


def test_a_beginning_that_two_backends_can_carry_is_enough() -> None:
    """A fifth of the traffic is less than two of eight backends, and more than one."""
    rival, candidates = DualMap(DualMapParams()), engines(IDS)
    one, other = request(links=chain("s", "x", "1")), request(links=chain("s", "y", "1"))
    for number in range(100):
        prompt = one if number % 5 == 0 else request(links=chain(f"other{number}"))
        place(rival, prompt, candidates)
    assert homes(rival, one, candidates) == homes(rival, other, candidates)


def test_the_two_homes_are_never_the_same() -> None:
    rival, candidates = DualMap(DualMapParams()), engines("abc")
    for number in range(50):
        assert len(homes(rival, request(links=chain(str(number))), candidates)) == 2
