from policies.rotation import Rotation
from tests.policies.views import views


def test_takes_turns() -> None:
    rotation, candidates = Rotation(), views("cab")
    assert [rotation.next("m", candidates).id for _ in range(5)] == list("abcab")


def test_stays_even_when_candidates_come_and_go() -> None:
    rotation = Rotation()
    offers = ["abc", "ac", "abc", "abcd", "ab"]
    assert [rotation.next("m", views(ids)).id for ids in offers] == list("acaba")


def test_models_that_alternate_do_not_pin_each_other() -> None:
    rotation, candidates = Rotation(), views("ab")
    turns = [rotation.next(model, candidates).id for model in ["x", "y"] * 2]
    assert turns == ["a", "a", "b", "b"]
