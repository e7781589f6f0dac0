from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.disagg.fleet import chat, gateway_for
from tests.harness.behaviour import Cut, Framing
from tests.harness.fake_backend import Health
from tests.harness.gateway_process import GatewayProcess, Metrics
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.raw import Answer

TEXT = "t0 t1 t2 t3 t4 "
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with Pools("nixl_pull", prefills=2, decodes=2) as running:
        yield running


@pytest.fixture(scope="module")
def shared(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("gateway")
    log = {"access": str(directory / "access.log")}
    with gateway_for(
        pools, directory, breaker={"failures": 1000, "share": 1.0}, log=log
    ) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, pools: Pools) -> Iterator[GatewayProcess]:
    pools.reset()
    yield shared
    shared.settles_idle()


def ask(gateway: GatewayProcess, name: str, **extra: Any) -> Answer:
    with gateway.client() as client:
        client.request(PATH, chat(name, **extra))
        return client.answer()


def fallbacks(metrics: Metrics) -> dict[str, float]:
    return metrics.by("prefixgate_pd_fallback_total", "reason")


def test_both_legs_have_one_id_and_it_is_not_the_clients(
    pools: Pools, gateway: GatewayProcess
) -> None:
    def send(number: int) -> int:
        return gateway.post(PATH, chat(f"p15 {number}"), x_request_id="mine").status_code

    with ThreadPoolExecutor(8) as several:
        assert list(several.map(send, range(16))) == [200] * 16
    prefills = [leg.id for engine in pools.prefills for leg in engine.legs]
    decodes = [leg.id for engine in pools.decodes for leg in engine.legs]
    assert sorted(prefills) == sorted(decodes)
    assert len(set(prefills)) == 16
    assert "mine" not in prefills
    assert pools.complaints == []
    assert pools.held == 0


def test_what_was_done_is_told(pools: Pools, gateway: GatewayProcess, tmp_path: Path) -> None:
    for engine in pools.prefills:
        engine.behave(cached_tokens=16)
    before = gateway.metrics()
    answer = ask(gateway, "told")
    assert answer.header("x-prefixgate-handover") == "remote; worth"
    urls = {engine.url for engine in pools.prefills}
    ids = {gateway.backend_id(url) for url in urls}
    assert answer.header("x-prefixgate-prefill-backend") in ids
    metrics = gateway.settles_idle()
    # What no engine had to compute is the 16. The decode engine has it from the prefill engine's
    # parameters, when they come unchanged, and tells the client the same.
    usage = answer.stream.payloads[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 16
    name = "prefixgate_reported_cached_tokens_total"
    gateway.settles(lambda now: now.total(name) == before.total(name) + 16)
    assert metrics.total("prefixgate_pd_requests_total", placement="remote", reason="worth") > 0


def test_the_first_byte_does_not_wait_for_the_prefill_answers_tail(
    pools: Pools, gateway: GatewayProcess
) -> None:
    for engine in pools.prefills:
        engine.spoil = lambda body: body + b" " * len(body)
        engine.behave(framing=Framing.CHUNKED, pieces=2, tail=60.0)
    answer = ask(gateway, "tail")
    assert answer.stream.text == TEXT
    assert answer.header("x-prefixgate-handover") == "remote; worth"
    legs = [leg for engine in pools.prefills for leg in engine.legs]
    assert len(legs) == 1
    # It is not left open for a minute either.
    for engine in pools.prefills:
        engine.wait(lambda engine=engine: all(leg.over for leg in engine.legs), 5.0)


def test_the_load_of_a_prefill_leg_ends_with_it(pools: Pools, gateway: GatewayProcess) -> None:
    ids = [gateway.backend_id(engine.url) for engine in pools.prefills]

    def loads(metrics: Metrics) -> float:
        return sum(metrics.total("prefixgate_in_flight", backend=id) for id in ids)

    prefilled, decoded = Event(), Event()
    for engine in pools.prefills:
        engine.behave(until=prefilled)
    for engine in pools.decodes:
        engine.behave(until=decoded)
    with gateway.client() as client:
        client.request(PATH, chat("load"))
        gateway.settles(lambda metrics: loads(metrics) == 1)
        prefilled.set()
        gateway.settles(lambda metrics: loads(metrics) == 0)
        assert gateway.metrics().total("prefixgate_in_flight") == 1
        decoded.set()
        assert client.answer().stream.text == TEXT


def test_p04_a_second_prefill_engine_is_tried(pools: Pools, gateway: GatewayProcess) -> None:
    failed = Event()

    def once(request: object) -> Any:
        if failed.is_set():
            return None
        failed.set()
        return broken

    broken = replace(pools.prefills[0].default, status=500)
    for engine in pools.prefills:
        engine.rule = once
    before = fallbacks(gateway.metrics())
    answer = ask(gateway, "second")
    assert answer.stream.text == TEXT
    assert answer.header("x-prefixgate-handover") == "remote; worth"
    assert [len(engine.legs) for engine in pools.prefills] == [1, 1]
    assert pools.prefills[0].legs[0].id != pools.prefills[1].legs[0].id
    assert fallbacks(gateway.metrics()) == before
    assert pools.complaints == []


def test_p04_no_third_one_is(pools: Pools, gateway: GatewayProcess) -> None:
    for engine in pools.prefills:
        engine.behave(status=500)
    before = fallbacks(gateway.metrics())
    answer = ask(gateway, "third")
    assert answer.stream.text == TEXT
    assert answer.header("x-prefixgate-handover") == "local; refused"
    gateway.settles_idle()
    after = fallbacks(gateway.metrics())
    assert after["refused"] == before.get("refused", 0) + 1


@pytest.mark.parametrize("params", [b"", b"null", b"{}", b'{"remote_engine_id":1}', b"[]", b"7"])
def test_p06_an_answer_without_a_transfer(
    pools: Pools, gateway: GatewayProcess, params: bytes
) -> None:
    def spoil(body: bytes) -> bytes:
        answer = json.loads(body)
        del answer["kv_transfer_params"]
        if params:
            answer["kv_transfer_params"] = json.loads(params)
        return json.dumps(answer).encode()

    for engine in pools.prefills:
        engine.spoil = spoil
    answer = ask(gateway, f"p06 {params!r}")
    assert answer.stream.text == TEXT
    assert answer.header("x-prefixgate-handover") == "local; no_transfer"
    parts = [leg.part for engine in pools.decodes for leg in engine.legs]
    assert parts == [Part.WHOLE]


def test_p07_another_decode_engine_gets_a_new_pairing(
    pools: Pools, gateway: GatewayProcess
) -> None:
    failed = Event()
    dropped = replace(pools.decodes[0].default, script=(Cut.RST,))

    def once(request: object) -> Any:
        if failed.is_set():
            return None
        failed.set()
        return dropped

    for engine in pools.decodes:
        engine.rule = once
    answer = ask(gateway, "p07")
    assert answer.stream.text == TEXT
    assert answer.header("x-prefixgate-handover") == "remote; worth"
    prefills = [leg for engine in pools.prefills for leg in engine.legs]
    decodes = [leg for engine in pools.decodes for leg in engine.legs if leg.part is Part.DECODE]
    served = {leg.body["kv_transfer_params"]["remote_request_id"] for leg in decodes}
    assert len({leg.id for leg in prefills}) == 2
    assert len(served) == 2


def test_d07_a_client_that_leaves_ends_the_prefill(pools: Pools, gateway: GatewayProcess) -> None:
    for engine in pools.prefills:
        engine.behave(ttft=30.0)
    before = gateway.metrics()
    with gateway.client() as client:
        client.request(PATH, chat("d07"))
        pools.prefills[0].wait(lambda: any(engine.legs for engine in pools.prefills))
    for engine in pools.prefills:
        engine.wait(lambda engine=engine: all(leg.over for leg in engine.legs), 1.0)
    assert all(not engine.legs for engine in pools.decodes)
    metrics = gateway.settles_idle()
    phases = metrics.by("prefixgate_client_disconnects_total", "phase")
    earlier = before.by("prefixgate_client_disconnects_total", "phase")
    assert phases["prefill"] == earlier.get("prefill", 0) + 1
    # The engine had not computed it, which it does not say: it just ends the connection. That is
    # heard after the request's end.
    name = "prefixgate_pd_orphaned_total"
    then = before.by(name, "reason")
    counted = then | {"unclear": then.get("unclear", 0) + 1}
    gateway.settles(lambda now: now.by(name, "reason") == counted)


def test_d08_a_client_that_leaves_after_the_prefill_has_it_released(
    pools: Pools, gateway: GatewayProcess
) -> None:
    for engine in pools.decodes:
        engine.behave(ttft=30.0)
    with gateway.client() as client:
        client.request(PATH, chat("d08"))
        pools.decodes[0].wait(lambda: any(engine.legs for engine in pools.decodes))
    pools.prefills[0].wait(lambda: pools.held == 0)
    assert pools.complaints == []


def test_p12_dead_prefill_engines_fail_no_request(tmp_path: Path) -> None:
    with Pools("nixl_pull") as pools, gateway_for(pools, tmp_path) as gateway:
        pools.prefills[0].stop()
        answers = [ask(gateway, f"p12 {number}") for number in range(12)]
        assert [answer.stream.text for answer in answers] == [TEXT] * 12
        assert {leg.part for leg in pools.decodes[0].legs} == {Part.WHOLE}
        gateway.settles_idle()
        reasons = fallbacks(gateway.metrics())
        assert sum(reasons.values()) == 12
        assert reasons.keys() <= {"broken", "no_prefill"}


def test_p12_where_they_must_not_be_missed_requests_fail_at_once(tmp_path: Path) -> None:
    disagg = {"fallback": "fail"}
    with Pools("nixl_pull") as pools, gateway_for(pools, tmp_path, disagg=disagg) as gateway:
        assert ask(gateway, "there").stream.text == TEXT
        pools.prefills[0].health = Health.UNAVAILABLE
        gateway.settles(lambda metrics: gateway.http.get("/ready").status_code == 503, 10.0)
        answer = ask(gateway, "away")
        assert answer.status == 503
        assert [leg.part for leg in pools.decodes[0].legs] == [Part.DECODE]


def test_l04_ready_is_a_pair(tmp_path: Path) -> None:
    with Pools("sglang") as pools:
        pools.prefills[0].health = Health.UNAVAILABLE
        with gateway_for(pools, tmp_path, ready=False) as gateway:
            assert gateway.http.get("/live").status_code == 200
            gateway.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1, 10.0)
            answer = gateway.http.get("/ready")
            assert answer.status_code == 503
            assert "no prefill engine" in answer.json()["reasons"][0]
            pools.prefills[0].health = Health.OK
            gateway.settles(lambda metrics: gateway.http.get("/ready").status_code == 200, 10.0)
            assert ask(gateway, "l04").stream.text == TEXT


def test_p09_what_no_protocol_carries_goes_to_one_engine(
    pools: Pools, gateway: GatewayProcess
) -> None:
    answer = ask(gateway, "p09", n=2)
    assert answer.status == 200
    assert answer.header("x-prefixgate-handover") == "local; several_answers"
    assert all(not engine.legs for engine in pools.prefills)


def test_a_unified_engine_serves_what_decode_engines_cannot(tmp_path: Path) -> None:
    with Pools("sglang", unified=1) as pools, gateway_for(pools, tmp_path) as gateway:
        pools.prefills[0].behave(status=500)
        for number in range(8):
            answer = ask(gateway, f"unified {number}", n=2 if number % 2 else 1)
            assert answer.status == 200
        assert pools.unified[0].legs
        assert all(leg.part is Part.DECODE for leg in pools.decodes[0].legs)
