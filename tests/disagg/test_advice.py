from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.disagg.advice import LEAST_SEEN, Observed, Remedy, advise

SEEN = Observed(
    window_seconds=300.0,
    ttft_count=4000,
    ttft_p50_seconds=2.0,
    ttft_p99_seconds=6.0,
    all_ttft_count=5000,
    all_ttft_p50_seconds=2.4,
    all_ttft_p99_seconds=7.4,
    tpot_count=4000,
    tpot_p50_seconds=0.03,
    tpot_p99_seconds=0.08,
    pace_seconds=0.1,
    prompt_count=4000,
    prompt_mean_tokens=12_000.0,
    prompt_deviation_tokens=15_000.0,
    prompt_p95_tokens=40_000.0,
    transfer_p95_prompt_seconds=0.42,
    concurrency_requests=60.0,
    prefill_seconds_per_second=3.0,
    decode_seconds_per_second=1.5,
    unified_engines=8,
)
"""A fleet without roles."""
STALLED: dict[str, Any] = {"tpot_p99_seconds": 0.2}


def judged(**changes: Any) -> tuple[bool | None, Remedy | None, str]:
    advice = advise(replace(SEEN, **changes))
    return advice.pays, advice.advice, advice.reason


def test_pays_where_first_tokens_take_much_longer_than_a_transfer() -> None:
    assert judged() == (
        True,
        Remedy.DISAGGREGATE,
        "the slowest first tokens (P99) take 6.00 s, and the transfer of a long prompt (P95, 40000"
        " tokens) 420 ms; half of the first tokens take 2.00 s or more",
    )
    assert judged(transfer_p95_prompt_seconds=2.0)[0]
    assert judged(transfer_p95_prompt_seconds=2.01)[:2] == (False, Remedy.NOTHING)
    assert judged(ttft_p99_seconds=1.0)[:2] == (False, Remedy.NOTHING)


def test_what_only_the_slowest_need_is_for_both_kinds_of_engines() -> None:
    pays, remedy, reason = judged(ttft_p50_seconds=0.3)
    assert (pays, remedy) == (True, Remedy.MIXED)
    assert reason.endswith("half of the first tokens come within 300 ms, too soon for a handover")
    split = {"unified_engines": 0, "prefill_engines": 5, "decode_engines": 3}
    pays, remedy, reason = judged(handover_ratio=0.4, **split)
    assert (pays, remedy) == (True, Remedy.MIXED)
    assert reason.endswith("40 % of the requests are handed over")
    assert judged(handover_ratio=0.05, **split)[1] is Remedy.DISAGGREGATE


def test_where_the_slow_ones_are_handed_over_they_count_less_their_transfer() -> None:
    """What one engine still serves waits for little, because of the handovers."""
    left: dict[str, Any] = {"ttft_p50_seconds": 0.1, "ttft_p99_seconds": 0.2}
    few: dict[str, Any] = {**left, "ttft_count": 3}
    for share, remedy in ((0.4, Remedy.MIXED), (1.0, Remedy.DISAGGREGATE)):
        pays, advice, reason = judged(handover_ratio=share, **few)
        assert (pays, advice) == (True, remedy)
        assert reason.startswith("the slowest first tokens (P99, less a transfer) take 6.98 s")
    assert judged(handover_ratio=0.4, **left, all_ttft_p99_seconds=1.6)[0] is False
    assert judged(handover_ratio=0.4, all_ttft_count=99)[0] is None
    assert judged(handover_ratio=0.0, **left)[0] is False


def test_does_not_pay_where_nobody_is_in_the_way() -> None:
    assert judged(concurrency_requests=3.0, **STALLED) == (
        False,
        Remedy.NOTHING,
        "3.0 requests in flight do not disturb each other; 8 would",
    )
    assert judged(prompt_deviation_tokens=600.0) == (
        False,
        Remedy.NOTHING,
        "prompts are all of about one length (12000 tokens, give or take 5 %)",
    )
    assert judged(unified_engines=1)[:2] == (False, Remedy.NOTHING)


@pytest.mark.parametrize(
    "why",
    [
        {"transfer_p95_prompt_seconds": 9.0},
        {"prompt_deviation_tokens": 600.0},
        {"unified_engines": 1},
    ],
    ids=lambda why: next(iter(why)),
)
def test_where_a_handover_does_not_pay_smaller_chunks_are_for_stalled_answers(
    why: dict[str, Any],
) -> None:
    pays, remedy, reason = judged(**STALLED, **why)
    assert (pays, remedy) == (False, Remedy.CHUNKED_PREFILL)
    assert reason.endswith(
        "the slowest answers (P99) take 200 ms per token, where 100 ms is the aim, half of them"
        " 30 ms or less"
    )
    assert (
        "200 ms per token beside chunks of 8192 tokens"
        in judged(**STALLED, **why, chunk_tokens=8192)[2]
    )
    assert judged(**STALLED, **why, tpot_count=LEAST_SEEN - 1)[1] is Remedy.NOTHING
    # Where no pace is wanted, they are held against each other.
    assert judged(**STALLED, **why, pace_seconds=None)[1] is Remedy.CHUNKED_PREFILL
    assert judged(**why, tpot_p99_seconds=0.05, pace_seconds=None)[1] is Remedy.NOTHING


def test_no_advice_is_made_up() -> None:
    assert judged(prompt_count=0) == (None, None, "no request was served in the last 300 s")
    few = judged(ttft_count=LEAST_SEEN - 1)
    assert few[:2] == (None, None)
    assert few[2].startswith("only 99 streams of the last 300 s can be compared with a transfer;")
    none = judged(ttft_count=0, ttft_p50_seconds=None, ttft_p99_seconds=None)
    assert none[:2] == (None, None)
    shapeless = judged(transfer_p95_prompt_seconds=None)
    assert shapeless[:2] == (None, None)
    assert "disagg.models does not say" in shapeless[2]
    # What needs no transfer time is said all the same.
    assert judged(transfer_p95_prompt_seconds=None, concurrency_requests=1.0)[0] is False


def test_the_split_follows_the_work_whatever_the_roles_are() -> None:
    for roles in ((0, 0, 8), (5, 3, 0), (3, 5, 0), (2, 2, 4)):
        prefill, decode, unified = roles
        engines = {
            "prefill_engines": prefill,
            "decode_engines": decode,
            "unified_engines": unified,
        }
        advice = advise(replace(SEEN, **engines))
        assert advice.prefill_to_decode_ratio == 2.0
        assert (advice.prefill_engines_wanted, advice.decode_engines_wanted) == (5, 3)
    overload = replace(SEEN, prefill_seconds_per_second=12.0, decode_seconds_per_second=4.0)
    assert advise(overload).prefill_engines_wanted == 6


def test_each_kind_keeps_an_engine() -> None:
    def split(prefill: float, decode: float) -> tuple[int | None, int | None]:
        load = {"prefill_seconds_per_second": prefill, "decode_seconds_per_second": decode}
        advice = advise(replace(SEEN, **load))
        return advice.prefill_engines_wanted, advice.decode_engines_wanted

    assert split(20.0, 0.01) == (7, 1)
    assert split(0.001, 20.0) == (1, 7)
    assert split(0.0, 0.0) == (None, None)


def test_pools_are_balanced_where_neither_has_much_more_to_do() -> None:
    def balance(prefill: float | None, decode: float | None) -> tuple[float | None, bool | None]:
        used = {"prefill_utilisation_ratio": prefill, "decode_utilisation_ratio": decode}
        advice = advise(replace(SEEN, **used))
        return advice.balance_ratio, advice.balanced

    assert balance(0.5, 0.4) == (1.25, True)
    assert balance(0.3, 0.4) == (pytest.approx(0.75), False)
    assert balance(None, 0.4) == (None, None)
    assert balance(0.5, None) == balance(0.5, 0.0) == (None, None)
