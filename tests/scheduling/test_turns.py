from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.turns import Turns

SHARES = {"low": 0.05, "mid": 0.3}
KINDS = ("top", "mid", "low")


def run(turns: Turns[str], waiting: list[list[str]], shares: dict[str, float]) -> list[str]:
    taken = []
    for kinds in waiting:
        kind = turns.first(kinds, shares)
        turns.released(kind, kinds, shares)
        taken.append(kind)
    return taken


@given(low=st.floats(0, 0.5), mid=st.floats(0, 0.5), count=st.integers(1, 300))
def test_each_kind_gets_its_share_and_the_first_the_rest(
    low: float, mid: float, count: int
) -> None:
    taken = run(Turns(KINDS), [list(KINDS)] * count, {"low": low, "mid": mid})
    for kind, share in (("low", low), ("mid", mid)):
        assert share * count - 2 - 1e-6 <= taken.count(kind) <= share * count + 2


@given(
    st.lists(st.lists(st.sampled_from(KINDS), min_size=1, unique=True), min_size=1, max_size=300)
)
def test_of_the_releases_while_it_waits_a_kind_gets_its_share(waiting: list[list[str]]) -> None:
    taken = run(Turns(KINDS), waiting, SHARES)
    for kind, share in SHARES.items():
        waited = [taken for kinds, taken in zip(waiting, taken, strict=True) if kind in kinds]
        assert waited.count(kind) >= share * len(waited) - 2 - 1e-6


def test_the_first_goes_first_where_shares_are_nothing() -> None:
    assert set(run(Turns(KINDS), [["low", "top", "mid"]] * 50, {})) == {"top"}
    assert set(run(Turns(KINDS), [["low", "mid"]] * 50, {})) == {"mid"}


def test_whoever_waits_alone_has_the_turn_and_no_debt() -> None:
    turns = Turns(KINDS)
    assert run(turns, [["low"]] * 10, SHARES) == ["low"] * 10
    assert run(turns, [["mid", "low"]] * 20, SHARES).count("low") == 1


def test_what_it_could_not_use_is_kept_up_to_two_turns() -> None:
    turns = Turns(("decode", "prefill"))
    shares = {"prefill": 0.5}
    for _ in range(100):
        turns.released("decode", ("decode", "prefill"), shares)
    ahead = 0
    while turns.first(("decode", "prefill"), {}) == "prefill":
        turns.released("prefill", ("decode", "prefill"), {})
        ahead += 1
    assert ahead == 2
