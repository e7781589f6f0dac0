from gateway.types import Reason
from loadtests.rivals.bounded_load import (
    BoundedLoad,
    BoundedLoadParams,
    BoundedLoadTwoBlocks,
    BoundedLoadTwoBlocksParams,
)
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import chain, request


def test_one_key_one_home_and_the_ring_goes_on_from_there() -> None:
    rival, candidates = BoundedLoad(BoundedLoadParams()), engines("abcd", in_flight=4)
    prompt = request(links=chain("x"))
    ranks = [terms["rank"] for terms in rival.explain(prompt, candidates)]
    order = [candidates[ranks.index(rank)] for rank in range(4)]
    assert rival.choose(prompt, candidates).backend == order[0].id
    # 17 requests over 4 backends times 1.25 is 5.31: five are in, the sixth is not.
    order[0].in_flight = 5
    spilled = rival.choose(prompt, candidates)
    assert (spilled.backend, spilled.reason) == (order[1].id, Reason.SPILL)


def test_nobody_within_the_bound_means_home() -> None:
    rival, candidates = BoundedLoad(BoundedLoadParams()), engines("abcd")
    prompt = request(links=chain("x"))
    home = rival.choose(prompt, candidates)
    # Two requests over four backends times 1.25 is less than one: nobody may have a first.
    [other] = [each for each in candidates if each.id != home.backend][:1]
    other.in_flight = 1
    assert rival.choose(prompt, candidates) == home


def test_the_bound_holds_for_a_hot_key() -> None:
    rival, candidates = BoundedLoad(BoundedLoadParams()), engines("abcd")
    for _ in range(400):
        chosen = rival.choose(request(links=chain("hot")), candidates).backend
        [candidate] = [each for each in candidates if each.id == chosen]
        candidate.in_flight += 1
    assert max(each.in_flight for each in candidates) == 125


def test_a_shared_first_block_is_one_key_and_two_blocks_are_not() -> None:
    prompts = [request(links=chain("system", str(number))) for number in range(200)]
    one, two = BoundedLoad(BoundedLoadParams()), BoundedLoadTwoBlocks(BoundedLoadTwoBlocksParams())
    candidates = engines("abcd")
    assert len({one.choose(prompt, candidates).backend for prompt in prompts}) == 1
    homes = [two.choose(prompt, candidates).backend for prompt in prompts]
    assert all(30 < homes.count(id) < 75 for id in "abcd")
    longer = request(links=chain("system", "7", "more"))
    assert two.choose(longer, candidates).backend == homes[7]


def test_a_new_backend_takes_only_keys_for_itself() -> None:
    rival = BoundedLoad(BoundedLoadParams())
    prompts = [request(links=chain(str(number))) for number in range(500)]
    before = [rival.choose(prompt, engines("abcd")).backend for prompt in prompts]
    after = [rival.choose(prompt, [*engines("abcd"), Engine("e")]).backend for prompt in prompts]
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {"e"}
    assert 60 < len(moved) < 140
