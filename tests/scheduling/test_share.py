from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.share import PrefillShare


@given(share=st.floats(0, 1), turns=st.integers(1, 300))
def test_prefill_gets_its_share_and_no_more(share: float, turns: int) -> None:
    order = PrefillShare()
    prefills = 0
    for _ in range(turns):
        first = order.is_due(share)
        order.released(share, prefill=first)
        prefills += first
    assert share * turns - 1 - 1e-6 <= prefills <= share * turns + 1e-6


@given(share=st.floats(0.01, 1), stuck=st.integers(0, 1000))
def test_what_it_could_not_use_is_kept_up_to_two_turns(share: float, stuck: int) -> None:
    order = PrefillShare()
    for _ in range(stuck):
        order.released(share, prefill=False)
    ahead = 0
    while order.is_due(0.0):
        order.released(0.0, prefill=True)
        ahead += 1
    assert ahead == min(2, int(stuck * share + 1e-6))


def test_turns_that_fell_to_it_anyway_are_no_debt() -> None:
    order = PrefillShare()
    for _ in range(10):
        order.released(0.5, prefill=True)
    order.released(0.5, prefill=False)
    assert order.is_due(0.5)
