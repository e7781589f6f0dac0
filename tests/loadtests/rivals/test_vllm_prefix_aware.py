from loadtests.rivals.vllm_prefix_aware import VllmPrefixAware, VllmPrefixAwareParams
from tests.loadtests.rivals.engines import Engine, engines, place
from tests.policies.views import chain, counts, request


def test_the_longest_match_however_busy() -> None:
    rival, candidates = VllmPrefixAware(VllmPrefixAwareParams()), engines("abcd")
    first = place(rival, request(links=chain("x", "1")), candidates)
    for candidate in candidates:
        candidate.in_flight = 100 if candidate.id == first else 0
    assert place(rival, request(links=chain("x", "1", "2")), candidates) == first


def test_strangers_go_anywhere() -> None:
    rival, candidates = VllmPrefixAware(VllmPrefixAwareParams()), engines("abcd")
    drawn = counts(lambda turn: place(rival, request(links=chain(str(turn))), candidates), 400)
    assert all(70 < drawn[id] < 130 for id in "abcd")


def test_a_shared_beginning_collapses_on_one_backend() -> None:
    rival, candidates = VllmPrefixAware(VllmPrefixAwareParams()), engines("abcd")
    drawn = counts(
        lambda turn: place(rival, request(links=chain("system", str(turn))), candidates), 50
    )
    assert list(drawn.values()) == [50]


def test_a_choice_that_was_not_placed_teaches_nothing() -> None:
    rival, candidates = VllmPrefixAware(VllmPrefixAwareParams()), engines("abcd")
    drawn = counts(lambda _: rival.choose(request(links=chain("x")), candidates).backend, 40)
    assert len(drawn) == 4


def test_an_owner_that_is_away_is_passed_over() -> None:
    rival, prompt = VllmPrefixAware(VllmPrefixAwareParams()), request(links=chain("x", "1"))
    rival.placed(prompt, Engine("gone"))
    rival.placed(request(links=chain("x")), Engine("b"))
    assert counts(lambda _: rival.choose(prompt, engines("abcd")).backend, 40) == {"b": 40}
