import pytest

from gateway.types import Reason
from policies.session import Session, SessionParams
from tests.policies.views import counts, request, views


def policy() -> Session:
    return Session(SessionParams())


def homes(ids: str, sessions: int = 1000) -> dict[str, str]:
    session, candidates = policy(), views(ids)
    keys = [f"session-{number}" for number in range(sessions)]
    return {key: session.choose(request(session=key), candidates).backend for key in keys}


def test_R10_adding_a_backend_moves_few_sessions() -> None:
    before, with_fifth, after = homes("abcd"), homes("abcde"), homes("abcd")
    moved = [key for key, home in before.items() if with_fifth[key] != home]
    assert 100 < len(moved) <= 300
    assert {with_fifth[key] for key in moved} == {"e"}
    assert after == before


@pytest.mark.parametrize("key", [None, ""])
def test_R11_no_key_does_not_mean_the_first_in_the_list(key: str | None) -> None:
    session, candidates = policy(), views("abcd")
    spread = counts(lambda _: session.choose(request(session=key), candidates).backend, 40)
    assert all(spread[id] >= 5 for id in "abcd")
    assert session.choose(request(session=key), candidates).reason is Reason.SESSIONLESS


def test_reason() -> None:
    assert policy().choose(request(session="s"), views("ab")).reason is Reason.SESSION
    assert policy().choose(request(session="s"), views("a")).reason is Reason.ONLY
