from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.disagg.advice import Observed, advise

KV_BYTES = 131_072.0
BANDWIDTH = 100e9 / 8
SEEN = Observed(
    ttft_p99=6.0,
    prompt_p95=40_000,
    prompt_mean=12_000,
    prompt_deviation=15_000,
    concurrency=60.0,
    prefill_seconds=3.0,
    decode_seconds=1.5,
    prefill_engines=5,
    decode_engines=3,
)


def test_pays_when_first_tokens_take_much_longer_than_a_transfer() -> None:
    advice = advise(SEEN, KV_BYTES, BANDWIDTH)
    assert advice.pays
    assert advice.transfer_seconds == pytest.approx(40_000 * KV_BYTES / BANDWIDTH)
    assert not advise(SEEN, KV_BYTES, BANDWIDTH / 10).pays
    assert not advise(replace(SEEN, ttft_p99=1.0), KV_BYTES, BANDWIDTH).pays


def test_does_not_pay_where_nobody_is_in_the_way() -> None:
    few = advise(replace(SEEN, concurrency=3.0), KV_BYTES, BANDWIDTH)
    assert (few.pays, few.reason) == (False, "3.0 requests in flight do not disturb each other")
    alike = advise(replace(SEEN, prompt_deviation=100), KV_BYTES, BANDWIDTH)
    assert (alike.pays, alike.reason) == (False, "prompts are all of about one length")


def test_the_ratio_follows_the_work() -> None:
    advice = advise(SEEN, KV_BYTES, BANDWIDTH)
    assert advice.ratio == 2.0
    assert advice.prefill_engines == 5
    assert (advice.prefill_utilisation, advice.decode_utilisation) == (0.6, 0.5)
    assert advice.balance == pytest.approx(1.2)
    assert advice.balanced
    swapped = advise(replace(SEEN, prefill_engines=3, decode_engines=5), KV_BYTES, BANDWIDTH)
    assert swapped.prefill_engines == 5
    assert not swapped.balanced
    overload = replace(SEEN, prefill_seconds=12.0, decode_seconds=4.0)
    assert advise(overload, KV_BYTES, BANDWIDTH).prefill_engines == 6


def test_each_kind_keeps_an_engine() -> None:
    only_prefill = replace(SEEN, prefill_seconds=20.0, decode_seconds=0.01)
    assert advise(only_prefill, KV_BYTES, BANDWIDTH).prefill_engines == 7
    only_decode = replace(SEEN, prefill_seconds=0.001, decode_seconds=20.0)
    assert advise(only_decode, KV_BYTES, BANDWIDTH).prefill_engines == 1


def test_nothing_is_said_of_what_is_not_there() -> None:
    idle = replace(SEEN, prefill_seconds=0.0, decode_seconds=0.0, concurrency=0.0)
    advice = advise(idle, KV_BYTES, BANDWIDTH)
    assert (advice.pays, advice.ratio, advice.prefill_engines, advice.balance) == (
        False,
        None,
        None,
        None,
    )
    unified = advise(replace(SEEN, prefill_engines=0, decode_engines=0), KV_BYTES, BANDWIDTH)
    assert unified.prefill_utilisation is None
    assert unified.balanced is None


def test_a_bandwidth_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="bandwidth must be above 0, got 0"):
        advise(SEEN, KV_BYTES, 0.0)
