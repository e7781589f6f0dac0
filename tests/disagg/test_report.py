"""/admin/v1/disagg, held against what the engines have seen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.disagg.fleet import chat, gateway_for
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.pd.leg import Leg, Part
from tests.harness.pd.pools import Pools
from tests.harness.routes import CHAT, text

BYTES = 1000
SHAPED = {"models": {"m": {"bytes_per_token": BYTES}}}
COUNT = 6
TRANSFER = 0.15
AT_ONCE = 40

Json = dict[str, Any]


@pytest.fixture
def pools() -> Iterator[Pools]:
    with Pools("nixl_pull", prefills=1, decodes=2) as running:
        yield running


def report(gateway: GatewayProcess) -> Json:
    [model] = gateway.admin("GET", "/disagg")
    assert isinstance(model, dict)
    return model


def ask(gateway: GatewayProcess, count: int = COUNT, **extra: Any) -> None:
    for at in range(count):
        with gateway.client() as client:
            assert client.exchange(CHAT.path, chat(f"{at}", **extra)).status == 200
    gateway.settles_idle()


def legs(pools: Pools, part: Part) -> list[Leg]:
    return [leg for engine in pools.engines for leg in engine.parts(part)]


def test_the_numbers_are_those_that_the_engines_saw(pools: Pools, tmp_path: Path) -> None:
    for decode in pools.decodes:
        decode.transfer = TRANSFER
    with gateway_for(pools, tmp_path, disagg=SHAPED) as gateway:
        ask(gateway)
        seen, metrics = report(gateway), gateway.metrics()
    prefills = legs(pools, Part.PREFILL)
    tokens = sum(leg.tokens for leg in prefills)
    assert len(prefills) == COUNT
    assert (seen["model"], seen["requests_count"], seen["handovers_count"]) == ("m", COUNT, COUNT)
    assert seen["observed"]["handover_ratio"] == 1.0
    transfers = seen["transfers"]
    assert transfers["count"] == transfers["timed_count"] == COUNT
    assert transfers["kv_tokens_moved"] == pytest.approx(tokens)
    assert transfers["kv_bytes_moved"] == pytest.approx(BYTES * tokens)
    assert seen["kv_bytes_per_token"] == BYTES
    assert transfers["observed_p50_seconds"] > 0.5 * TRANSFER  # less a step
    assert transfers["predicted_p50_seconds"] < transfers["observed_p50_seconds"]
    assert seen["transfer_basis"] == "learnt"
    assert seen["bandwidth_bytes_per_second"] < 10e9 / 8
    assert metrics.total("prefixgate_pd_kv_bytes_total") == pytest.approx(BYTES * tokens)
    observed = metrics.total("prefixgate_pd_transfer_observed_seconds_sum")
    assert observed / COUNT == pytest.approx(transfers["observed_p50_seconds"], abs=TRANSFER)
    assert metrics.total("prefixgate_pd_transfer_predicted_seconds_count") == COUNT
    assert seen["wasted_prefills"] == {"count": 0, "reasons": {}, "prefill_seconds": 0.0}
    prefill, decode = pools_of(seen, "prefill"), pools_of(seen, "decode")
    assert (prefill["engines"], decode["healthy_engines"]) == (1, 2)
    assert prefill["connectors"] == decode["connectors"] == ["nixl_pull"]
    assert prefill["prefill_seconds_per_second"] > 0.0 == prefill["decode_seconds_per_second"]
    assert decode["decode_seconds_per_second"] > 0.0 == decode["prefill_seconds_per_second"]
    assert decode["utilisation_ratio"] == pytest.approx(decode["decode_seconds_per_second"] / 2)


def pools_of(seen: Json, role: str) -> Json:
    [pool] = [pool for pool in seen["pools"] if pool["role"] == role]
    assert isinstance(pool, dict)
    return pool


def test_without_a_shape_nothing_is_said_in_bytes(pools: Pools, tmp_path: Path) -> None:
    for decode in pools.decodes:
        decode.transfer = TRANSFER
    with gateway_for(pools, tmp_path) as gateway:
        ask(gateway)
        seen = report(gateway)
    transfers = seen["transfers"]
    tokens = sum(leg.tokens for leg in legs(pools, Part.PREFILL))
    assert transfers["kv_tokens_moved"] == pytest.approx(tokens)
    assert transfers["observed_p95_seconds"] > 0.5 * TRANSFER
    assert (transfers["kv_bytes_moved"], transfers["predicted_p95_seconds"]) == (None, None)
    for name in ("kv_bytes_per_token", "bandwidth_bytes_per_second", "transfer_basis"):
        assert seen[name] is None
    assert seen["observed"]["transfer_p95_prompt_seconds"] is None


def test_an_answer_that_is_no_stream_is_counted_and_not_timed(pools: Pools, tmp_path: Path) -> None:
    with gateway_for(pools, tmp_path, disagg=SHAPED) as gateway:
        ask(gateway, 2, stream=False)
        transfers = report(gateway)["transfers"]
    assert (transfers["count"], transfers["timed_count"]) == (2, 0)
    assert transfers["kv_bytes_moved"] > 0.0
    assert transfers["observed_p50_seconds"] is None


@pytest.mark.parametrize("protocol", ["sglang", "mooncake"])
def test_where_both_legs_are_sent_at_once_nobody_sees_a_transfer_begin(
    protocol: str, tmp_path: Path
) -> None:
    with Pools(protocol) as pools, gateway_for(pools, tmp_path, disagg=SHAPED) as gateway:
        ask(gateway, 2)
        transfers = report(gateway)["transfers"]
    assert (transfers["count"], transfers["timed_count"]) == (2, 0)
    assert transfers["kv_bytes_moved"] > 0.0


def test_prefills_for_nobody_are_told_by_why(pools: Pools, tmp_path: Path) -> None:
    prefill = pools.prefills[0]
    with gateway_for(pools, tmp_path, disagg=SHAPED, retries={"max_retries": 0}) as gateway:
        for decode in pools.decodes:
            decode.next(hang=True)
        with gateway.client() as client:
            client.request(CHAT.path, chat("left"))
            prefill.wait(lambda: bool(legs(pools, Part.DECODE)))
        # The release goes to a decode engine too, and takes what comes next there.
        gateway.settles(lambda now: now.total("prefixgate_pd_released_total") == 1)
        pools.reset()
        for decode in pools.decodes:
            decode.next(status=500)
        with gateway.client() as client:
            client.exchange(CHAT.path, chat("refused"))
        pools.reset()
        prefill.spoil = lambda body: body.replace(b"kv_transfer_params", b"something_else_so")
        with gateway.client() as client:
            assert client.exchange(CHAT.path, chat("nothing")).status == 200
        gateway.settles_idle()
        wasted, metrics = report(gateway)["wasted_prefills"], gateway.metrics()
    assert wasted["reasons"] == {"client_left": 1, "decode": 1, "no_transfer": wasted["count"] - 2}
    assert wasted["count"] > 2
    assert wasted["prefill_seconds"] > 0.0
    by_why = metrics.by("prefixgate_pd_wasted_prefills_total", "reason")
    assert by_why == wasted["reasons"]


def test_what_nobody_waits_for_is_no_longer_under_way(pools: Pools, tmp_path: Path) -> None:
    large = 10**9
    shaped = {"models": {"m": {"bytes_per_token": large}}}
    with gateway_for(pools, tmp_path, disagg=shaped) as gateway:
        for decode in pools.decodes:
            decode.next(hang=True)
        with gateway.client() as client:
            client.request(CHAT.path, chat("left"))
            pools.prefills[0].wait(lambda: bool(legs(pools, Part.DECODE)))
        gateway.settles_idle()
        pools.reset()
        ask(gateway, 1)
        transfers = report(gateway)["transfers"]
    alone = 5e-3 + large * transfers["kv_tokens_moved"] / (10e9 / 8)
    assert transfers["count"] == 1
    assert transfers["predicted_p50_seconds"] == pytest.approx(alone)


def test_a_fleet_without_roles_learns_whether_they_would_pay(tmp_path: Path) -> None:
    """More than a hundred requests, so many at a time, of which first tokens take long."""
    with FakeBackend("m") as one, FakeBackend("m") as two:
        for engine in (one, two):
            engine.behave(ttft=1.0, n_tokens=4)
        settings = {
            "backends": [{"url": engine.url, "models": ["m"]} for engine in (one, two)],
            "disagg": SHAPED,
            "scheduling": {"gate": None},
        }

        def send(gateway: GatewayProcess, at: int) -> int:
            body = CHAT.stream([text(f"prompt {at}", 50 if at % 2 else 2000)])
            with gateway.client() as client:
                return client.exchange(CHAT.path, body).status

        with GatewayProcess(settings, tmp_path) as gateway, ThreadPoolExecutor(AT_ONCE) as threads:
            assert set(threads.map(lambda at: send(gateway, at), range(3 * AT_ONCE))) == {200}
            gateway.settles_idle()
            seen = report(gateway)
        prompts = [told_by(request) for engine in (one, two) for request in engine.requests]
    observed, advice = seen["observed"], seen["advice"]
    assert [pool["role"] for pool in seen["pools"]] == ["unified"]
    assert seen["pools"][0]["engines"] == observed["unified_engines"] == 2
    assert seen["transfer_basis"] == "configured"
    assert seen["bandwidth_bytes_per_second"] == 10e9 / 8
    assert observed["ttft_count"] == observed["prompt_count"] == len(prompts)
    assert observed["prompt_mean_tokens"] == pytest.approx(sum(prompts) / len(prompts))
    assert observed["ttft_p99_seconds"] >= 1.0
    wanted = 5e-3 + BYTES * observed["prompt_p95_tokens"] / (10e9 / 8)
    assert observed["transfer_p95_prompt_seconds"] == pytest.approx(wanted)
    assert (advice["prefill_engines_wanted"], advice["decode_engines_wanted"]) == (1, 1)
    assert advice["prefill_to_decode_ratio"] > 0.0
    assert observed["concurrency_requests"] >= 8.0, seen
    assert (advice["pays"], advice["advice"]) == (True, "disaggregate")
    assert "the slowest first tokens (P99) take" in advice["reason"]


def told_by(request: Any) -> int:
    return max(1, len(request.body) // 4)


def test_after_a_reload_shape_and_bandwidth_are_others(pools: Pools, tmp_path: Path) -> None:
    with gateway_for(pools, tmp_path, disagg=SHAPED) as gateway:
        ask(gateway, 2)
        before = report(gateway)
        tree = yaml.safe_load(gateway.config_path.read_text())
        tree["disagg"] |= {"models": {"m": {"bytes_per_token": 7 * BYTES}}, "bandwidth": 100.0}
        gateway.config_path.write_text(yaml.safe_dump(tree))
        done = gateway.admin("POST", "/config/reload")
        after = report(gateway)
        ask(gateway, 1)
        later = report(gateway)
    assert done == {"changed": ["disagg.bandwidth", "disagg.models"], "needs_restart": []}
    assert after["kv_bytes_per_token"] == 7 * BYTES
    assert (after["transfer_basis"], after["bandwidth_bytes_per_second"]) == ("configured", 12.5e9)
    assert after["requests_count"] == before["requests_count"] == 2
    added = later["transfers"]["kv_bytes_moved"] - before["transfers"]["kv_bytes_moved"]
    moved = later["transfers"]["kv_tokens_moved"] - before["transfers"]["kv_tokens_moved"]
    assert added == pytest.approx(7 * BYTES * moved)
