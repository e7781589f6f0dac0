from loadtests.rivals.random_choice import RandomChoice, RandomParams
from tests.loadtests.rivals.engines import Engine, engines
from tests.policies.views import counts, request


def test_every_backend_is_as_likely_as_the_next() -> None:
    rival, candidates = RandomChoice(RandomParams()), [*engines("abc"), Engine("d", in_flight=99)]
    drawn = counts(lambda _: rival.choose(request(), candidates).backend, 4000)
    assert all(900 < drawn[id] < 1100 for id in "abcd")
