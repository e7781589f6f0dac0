import pytest
from msgspec.structs import replace

from gateway.types import Reason
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams
from tests.policies.views import View, chain, counts, request, views


def policy(**params: float) -> PrefixAffinity:
    return PrefixAffinity(PrefixAffinityParams(**params))


def test_goes_where_the_prefix_is() -> None:
    decision = policy().choose(request(tokens=6000, held={"b": 5500}), views("abc"))
    assert (decision.backend, decision.reason) == ("b", Reason.PREFIX)
    assert decision.scores[1] == min(decision.scores)


def test_spills_when_waiting_costs_more_than_recomputing() -> None:
    candidates = [View("a", in_flight=9, pending_tokens=30_000), View("b")]
    decision = policy().choose(request(tokens=2000, held={"a": 1500}), candidates)
    assert (decision.backend, decision.reason) == ("b", Reason.SPILL)


def test_a_full_holder_that_is_no_candidate_makes_it_a_spill() -> None:
    decision = policy().choose(request(tokens=2000, held={"full": 1500}), views("ab"))
    assert decision.reason is Reason.SPILL


def test_holds_on_to_reuse_when_the_pool_is_busy() -> None:
    """The congestion price: the same choice, with and without an hour of heavy traffic."""
    candidates = [View("a", in_flight=2, pending_tokens=9_000), View("b")]
    asked = request(tokens=6000, held={"a": 5500}, now=3600.0)
    idle, busy, unpriced = policy(), policy(), policy(theta_max=0)
    for priced in (busy, unpriced):
        for tick in range(3600):
            for _ in range(3):
                priced.placed(request(tokens=5000, now=float(tick)), View("a"))
    assert idle.choose(asked, candidates).backend == "b"
    assert busy.choose(asked, candidates).backend == "a"
    assert unpriced.choose(asked, candidates).backend == "b"


def test_streams_that_would_be_stalled_raise_the_price() -> None:
    candidates = [View("a", decoding=50, stream_seconds=0.0), View("b")]
    asked = request(tokens=4000, held={"a": 500})
    assert policy(eta=0).choose(asked, candidates).backend == "a"
    assert policy(eta=1).choose(asked, candidates).backend == "b"


def test_streams_that_would_be_spoilt_are_worth_some_seconds_each() -> None:
    """The prefix saves 0.3 s."""
    asked = request(tokens=4000, held={"a": 3000}, output=0)
    for spoilt, expected in ((0.05, "a"), (0.1, "b")):
        candidates = [View("a", spoilt=spoilt, decoding=1), View("b")]
        assert policy(spoil=4, theta_max=0).choose(asked, candidates).backend == expected
        assert policy(spoil=0, theta_max=0).choose(asked, candidates).backend == "a"
    everywhere = [View("a", spoilt=1.0), View("b", spoilt=1.0)]
    assert policy().choose(asked, everywhere).backend == "a"


def test_a_slow_backend_pays_no_price_for_being_slow() -> None:
    """The price stands for what others lose of a prefill, and that is counted in work."""
    candidates = [View("a", prefill_rate=5_000, usual_rate=10_000), View("b")]
    slow, usual = policy().explain(request(tokens=4000), candidates)
    assert slow["prefill"] > 1.9 * usual["prefill"]
    assert slow["price"] == pytest.approx(usual["price"], rel=0.05)


def test_one_that_is_urgent_goes_where_its_first_token_comes_soonest() -> None:
    candidates = [View("a", in_flight=2, pending_tokens=9_000), View("b")]
    affinity = policy()
    for tick in range(3600):
        affinity.placed(request(tokens=15_000, now=float(tick)), View("a"))
    asked = request(tokens=6000, held={"a": 5500}, now=3600.0)
    assert affinity.choose(asked, candidates).backend == "a"
    assert affinity.choose(replace(asked, urgent=True), candidates).backend == "b"


def test_decode_streams_are_load() -> None:
    candidates = [View("a", in_flight=40), View("b")]
    asked = request(tokens=4000, held={"a": 1500})
    assert policy(omega=0).choose(asked, candidates).backend == "a"
    assert policy(omega=1).choose(asked, candidates).backend == "b"


def test_attention_makes_the_end_of_a_long_prompt_worth_waiting_for() -> None:
    asked = request(tokens=100_000, held={"a": 100_000, "b": 90_000})

    def chosen(attention_context: float) -> str:
        facts = {"attention_context": attention_context}
        candidates = [View("a", pending_tokens=12_000, **facts), View("b", **facts)]
        return policy(theta_max=0).choose(asked, candidates).backend

    assert chosen(1e9) == "b"
    assert chosen(30_000) == "a"


def test_R05_a_few_huge_requests_are_load_too() -> None:
    candidates = [
        View("a", in_flight=3, context_tokens=485_000),
        View("b", in_flight=3, context_tokens=50_000),
    ]
    asked = request(tokens=6_000, held={"a": 5_500})
    assert policy().choose(asked, candidates).backend == "b"
    [at_a, at_b] = policy().explain(asked, candidates)
    assert at_a["memory"] > at_b["memory"] == 0.0


def test_what_is_held_for_a_backend_is_load_too() -> None:
    candidates = [View("a", held_seconds=3.0), View("b")]
    assert policy().choose(request(tokens=2000, held={"a": 1500}), candidates).backend == "b"


def test_R16_over_full_backends_are_passed_over_one_by_one() -> None:
    full = views("abc", context_tokens=475_000)
    for number in range(20):
        asked = request(links=chain(str(number)), held={"a": 900}, tokens=2_000)
        assert policy().choose(asked, [*full, View("d", context_tokens=50_000)]).backend == "d"


def test_a_full_cache_is_avoided() -> None:
    candidates = [View("a", context_tokens=490_000), View("b")]
    decision = policy().choose(request(tokens=10_000, held={"a": 9_000}), candidates)
    assert decision.backend == "b"


def test_R04_rebalancing_keeps_what_affinity_it_can() -> None:
    candidates = [View("a", in_flight=30), View("b", in_flight=2), View("c", in_flight=3)]
    decision = policy().choose(request(tokens=1600, held={"c": 1500}), candidates)
    assert decision.backend == "c"


def test_R02_cold_misses_go_to_the_least_loaded() -> None:
    """A has 20 requests hanging; B is idle but owns a large prefix of something else."""
    affinity = policy()
    a, b = View("a", in_flight=20, pending_tokens=10_000), View("b")
    reached = []
    for number in range(20):
        decision = affinity.choose(request(tokens=500, links=chain(f"new {number}")), [a, b])
        reached.append(decision.backend)
        chosen = a if decision.backend == "a" else b
        chosen.in_flight += 1
        chosen.pending_tokens += 500
    assert reached.count("b") >= 18


def test_cold_prompts_do_not_tie_with_a_busier_backend() -> None:
    """One stream more is within 2% of a long answer's cost; with nothing to reuse it decides."""
    affinity, candidates = policy(), [View("a", in_flight=1), View("b")]
    chosen = [
        affinity.choose(request(links=chain(str(number))), candidates) for number in range(20)
    ]
    assert {decision.backend for decision in chosen} == {"b"}


def test_R11_requests_without_a_key_are_spread() -> None:
    affinity, candidates = policy(), views("abcd")
    spread = counts(lambda _: affinity.choose(request(tokens=0), candidates).backend, 40)
    assert all(spread[id] >= 5 for id in "abcd")


def test_cold_prompts_on_idle_backends_are_spread_by_their_hash() -> None:
    affinity, replica, candidates = policy(), policy(), views("abc")

    def choose(number: int) -> str:
        asked = request(links=chain("system", str(number)))
        chosen = affinity.choose(asked, candidates).backend
        # replicas that have seen the same agree without talking
        assert replica.choose(asked, candidates).backend == chosen
        return chosen

    spread = counts(choose, 300)
    assert all(spread[id] > 80 for id in "abc")


def test_R08_a_system_prompt_that_all_hold_makes_no_monopoly() -> None:
    """Even one conversation after the other, with all backends idle every time."""
    affinity, candidates = policy(), views("abc")
    held = {"a": 1500, "b": 1500, "c": 1500}

    def choose(number: int) -> str:
        asked = request(tokens=2000, held=held, links=chain("system", str(number)))
        return affinity.choose(asked, candidates).backend

    assert all(count > 60 for count in counts(choose, 300).values())


def test_within_a_tie_the_longest_match_wins() -> None:
    """A small match on top of a common one is worth less than 2% of a long answer's cost."""
    affinity = policy()
    held = {"a": 1500, "b": 1600, "c": 1500}
    for number in range(20):
        asked = request(tokens=1700, held=held, output=1000, links=chain(str(number)))
        assert affinity.choose(asked, views("abc")).backend == "b"


def test_ties_do_not_depend_on_small_differences_of_load() -> None:
    """Replicas see slightly different loads and should still agree."""
    asked = request(tokens=2000, held={"a": 1500, "b": 1500}, links=chain("s", "u"))
    one = policy().choose(asked, [View("a", pending_tokens=20), View("b")])
    other = policy().choose(asked, [View("a"), View("b", pending_tokens=20)])
    assert one.backend == other.backend


def test_a_session_key_keeps_siblings_together() -> None:
    affinity, candidates = policy(), views("abcd")
    chosen = {
        affinity.choose(request(links=chain(str(n)), session="one"), candidates).backend
        for n in range(20)
    }
    assert len(chosen) == 1


@pytest.mark.parametrize(
    ("held", "ids", "reason"),
    [
        ({}, "ab", Reason.LOAD),
        ({"a": 900}, "ab", Reason.PREFIX),
        ({"a": 900}, "a", Reason.ONLY),
        ({}, "a", Reason.ONLY),
        ({"a": 900}, "b", Reason.SPILL),
    ],
)
def test_reasons(held: dict[str, int], ids: str, reason: Reason) -> None:
    assert policy().choose(request(held=held), views(ids)).reason is reason


def test_explain_shows_the_terms_of_the_scores_and_changes_nothing() -> None:
    candidates = [
        View("a", in_flight=5, decoding=4, pending_tokens=700, context_tokens=480_000, spoilt=1.0),
        View("b", in_flight=1, spoilt=0.5),
    ]
    asked = request(tokens=3000, held={"a": 2000}, links=chain("x"))
    affinity = policy()
    for tick in range(30):
        affinity.placed(replace(asked, now=float(tick)), candidates[0])
    asked = replace(asked, now=30.0)
    explained = affinity.explain(asked, candidates)
    assert affinity.explain(asked, candidates) == explained
    decision = affinity.choose(asked, candidates)
    for terms in explained:
        parts = ("queue", "prefill", "price", "streams", "decode", "memory")
        assert sum(terms[part] for part in parts) == pytest.approx(terms["total"])
    # of the one that costs more in any case nobody asked which streams it would spoil
    assert decision.scores[0] == explained[0]["total"] - explained[0]["streams"]
    assert decision.scores[1] == explained[1]["total"]
    assert [terms["streams"] for terms in explained] == [4.0, 2.0]
    assert explained[0]["memory"] > 0
    assert explained[1]["price"] > 0


def test_new_conversations_are_spread_evenly_over_idle_backends() -> None:
    affinity, candidates = policy(), views("abc")

    def place(turn: int) -> str:
        asked = request(links=chain(f"conversation {turn}"))
        home = affinity.choose(asked, candidates).backend
        affinity.placed(asked, next(view for view in candidates if view.id == home))
        return home

    assert min(counts(place, 30).values()) >= 7


def test_asking_changes_nothing() -> None:
    """A ticket that waits is looked at many times and placed once."""
    affinity, candidates = policy(), views("abc")
    asked = request(tokens=50_000, links=chain("x"))
    first = affinity.choose(asked, candidates)
    assert {affinity.choose(asked, candidates) for _ in range(100)} == {first}


def beside(**params: float) -> PrefixAffinity:
    """A policy that has heard of another replica's placement, by time 0."""
    one, other = policy(**params), policy()
    other.placed(request(links=chain("other"), tokens=0), View("z"))
    one.placed_elsewhere(other.note(), View("z"), 0.0)
    return one


def test_beside_other_replicas_cold_prompts_go_to_the_better_of_two() -> None:
    candidates = views("abcdefgh")
    candidates[3].pending_tokens = 500
    alone, company = policy(), beside()
    links = [chain(f"new {number}") for number in range(200)]
    placed = [company.choose(request(links=link), candidates).backend for link in links]
    # One that is a little busier still gets none: the other of the two is as good or better.
    assert set(placed) == set("abcefgh")
    candidates[0].pending_tokens = -1  # least loaded by next to nothing
    assert {alone.choose(request(links=link), candidates).backend for link in links} == {"a"}
    assert [company.choose(request(links=link), candidates).backend for link in links] == placed


def test_beside_other_replicas_the_cheapest_wins_where_both_of_two_are_far_dearer() -> None:
    candidates = views("abcdefgh", pending_tokens=50_000)
    candidates[0].pending_tokens = 0
    company = beside()
    placed = {
        company.choose(request(links=chain(f"new {number}")), candidates).backend
        for number in range(50)
    }
    assert placed == {"a"}


def test_a_replica_that_has_long_placed_nothing_is_not_reckoned_with() -> None:
    candidates = views("abcdefgh")
    candidates[0].pending_tokens = -1
    company = beside()
    placed = {
        company.choose(request(links=chain(f"new {number}"), now=120.0), candidates).backend
        for number in range(50)
    }
    assert placed == {"a"}


@pytest.mark.parametrize("shared", [True, False])
def test_what_other_replicas_place_raises_the_price_as_what_is_placed_here(shared: bool) -> None:
    here, there, one = policy(), policy(), policy()
    candidates = views("ab")
    for second in range(60):
        for number in range(4):
            cold = request(tokens=5000, links=chain(f"{second} {number}"), now=float(second))
            one.placed(cold, candidates[number % 2])
            (here, there)[number % 2].placed(cold, candidates[number % 2])
            if shared and number % 2:
                here.placed_elsewhere(there.note(), candidates[1], float(second))
    asked = request(tokens=5000, links=chain("x"), now=60.0)
    prices = [each.explain(asked, candidates)[0]["price"] for each in (here, one)]
    assert (prices[0] == pytest.approx(prices[1])) == shared


@pytest.mark.parametrize("shared", [True, False])
def test_waits_that_other_replicas_pay_count_towards_a_copy(shared: bool) -> None:
    here, there = policy(), policy()
    hot = request(tokens=4000, held={"a": 3900}, links=chain(*"x" * 39))
    busy = [View("a", pending_tokens=1500), View("b")]
    for _ in range(40):
        there.choose(hot, busy)
        there.placed(hot, busy[0])
        if shared:
            here.placed_elsewhere(there.note(), busy[0], 0.0)
    assert (here.choose(hot, busy).reason is Reason.COPY) == shared


def test_another_policys_note_is_passed_over() -> None:
    one = policy()
    for note in (b"", b"\xff", b"\x95\xa5other\xa1m\x01\x02\xc4\x00"):
        one.placed_elsewhere(note, View("a"), 0.0)
    assert one.note() == b""
