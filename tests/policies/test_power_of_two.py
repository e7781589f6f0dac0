from gateway.types import Reason
from policies.power_of_two import PowerOfTwo, PowerOfTwoParams
from tests.policies.views import View, counts, request, views


def test_never_takes_the_busiest_of_several() -> None:
    policy = PowerOfTwo(PowerOfTwoParams(seed=1))
    candidates = [View("a", in_flight=1), View("b", in_flight=5), View("c", in_flight=9)]
    spread = counts(lambda _: policy.choose(request(), candidates).backend, 3000)
    assert set(spread) == {"a", "b"}
    assert 1850 < spread["a"] < 2150


def test_equally_busy_backends_are_spread_over() -> None:
    policy = PowerOfTwo(PowerOfTwoParams(seed=1))
    spread = counts(lambda _: policy.choose(request(), views("abcd")).backend, 4000)
    assert all(850 < spread[id] < 1150 for id in "abcd")


def test_a_seed_repeats_the_draws() -> None:
    def draws(seed: int) -> list[str]:
        policy = PowerOfTwo(PowerOfTwoParams(seed=seed))
        return [policy.choose(request(), views("abcdef")).backend for _ in range(50)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_one_candidate() -> None:
    policy = PowerOfTwo(PowerOfTwoParams())
    assert policy.choose(request(), views("a")).reason is Reason.ONLY
