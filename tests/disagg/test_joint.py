"""The policy chooses the engines of both legs together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.disagg.fleet import chat, gateway_for
from tests.harness.gateway_process import GatewayProcess
from tests.harness.pd.pools import Pools
from tests.harness.raw import Answer
from tests.harness.routes import CHAT, text

PATH = "/v1/chat/completions"
LONG = text("long", 160_000)
"""Of about 40,000 tokens: seconds of prefill, as engines are assumed to be."""
FAST = {"min_uncached_tokens": None, "bandwidth": 400.0, "models": {"m": {"bytes_per_token": 1000}}}


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with Pools("nixl_pull", prefills=1, decodes=2) as running:
        yield running


@pytest.fixture(scope="module")
def shared(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_for(
        pools, tmp_path_factory.mktemp("gateway"), disagg=FAST, timeouts={}
    ) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, pools: Pools) -> Iterator[GatewayProcess]:
    pools.reset()
    yield shared
    shared.settles_idle()


def ask(gateway: GatewayProcess, body: dict[str, Any]) -> Answer:
    with gateway.client() as client:
        client.request(PATH, body)
        return client.answer()


@contextmanager
def streams(gateway: GatewayProcess, pools: Pools, count: int) -> Iterator[None]:
    """Answers at the decode engines that go on for as long as this does."""
    for engine in pools.decodes:
        engine.behave(silent_after=2)
    with ExitStack() as stack:
        for number in range(count):
            client = stack.enter_context(gateway.client())
            client.request(PATH, chat(f"stream {number}"))
            client.events(1)
        for engine in pools.decodes:
            engine.behave()
        yield


def test_a_long_prompt_is_handed_over_where_it_would_stall_streams_and_a_short_one_is_not(
    gateway: GatewayProcess, pools: Pools
) -> None:
    """The control is the same prompt without anybody whom it could stall."""
    alone = ask(gateway, CHAT.stream([text("control", 160_000)]))
    assert alone.header("x-prefixgate-handover") == "local; sooner"
    with streams(gateway, pools, 6):
        long = ask(gateway, CHAT.stream([LONG]))
        short = ask(gateway, chat("short"))
    assert long.header("x-prefixgate-handover") == "remote; worth"
    assert short.header("x-prefixgate-handover") == "local; sooner"
    assert long.header("x-prefixgate-backend") != long.header("x-prefixgate-prefill-backend")
    assert pools.complaints == []
    assert pools.held == 0


def explained(gateway: GatewayProcess, body: dict[str, Any]) -> dict[str, str]:
    told = gateway.admin("POST", "/explain", {"path": PATH, "body": body})
    handover: dict[str, str] = told["decision"]["handover"]
    return handover


def test_it_can_be_asked_what_would_be_handed_over(gateway: GatewayProcess, pools: Pools) -> None:
    prefill = gateway.backend_id(pools.prefills[0].url)
    decodes = {gateway.backend_id(engine.url) for engine in pools.decodes}
    long = CHAT.stream([text("asked", 160_000)])
    with streams(gateway, pools, 6):
        remote = explained(gateway, long)
        carried = explained(gateway, long | {"n": 2})
        local = explained(gateway, chat("asked"))
    assert (remote["prefill_backend"], remote["reason"]) == (prefill, "worth")
    assert remote["decode_backend"] in decodes
    for told, reason in ((carried, "several_answers"), (local, "sooner")):
        assert told["reason"] == reason
        assert told["prefill_backend"] == told["decode_backend"]
    assert local["decode_backend"] in decodes
    assert sum(len(engine.legs) for engine in pools.prefills) == 0


def test_what_no_handover_carries_goes_to_one_engine(gateway: GatewayProcess, pools: Pools) -> None:
    """The control is the same prompt with one answer."""
    with streams(gateway, pools, 6):
        several = ask(gateway, CHAT.stream([text("several", 160_000)]) | {"n": 2})
        one = ask(gateway, CHAT.stream([text("one", 160_000)]))
    assert several.header("x-prefixgate-handover") == "local; several_answers"
    assert one.header("x-prefixgate-handover") == "remote; worth"


def test_a_prefill_engine_serves_all_of_a_request_where_nobody_else_can(
    gateway: GatewayProcess, pools: Pools
) -> None:
    ids = [gateway.backend_id(engine.url) for engine in pools.decodes]
    for id in ids:
        gateway.admin("POST", f"/backends/{id}/drain")
    answer = ask(gateway, chat("hosted"))
    for id in ids:
        gateway.admin("POST", f"/backends/{id}/undrain")
    assert answer.status == 200
    assert answer.header("x-prefixgate-handover") == "local; hosted"
    assert answer.header("x-prefixgate-backend") == gateway.backend_id(pools.prefills[0].url)


def test_it_is_told_when_no_prefill_engine_is_there(gateway: GatewayProcess, pools: Pools) -> None:
    """Not that one engine is sooner: nobody compared."""
    [id] = [gateway.backend_id(engine.url) for engine in pools.prefills]
    gateway.admin("POST", f"/backends/{id}/drain")
    answer = ask(gateway, chat("nobody"))
    told = explained(gateway, chat("nobody"))
    gateway.admin("POST", f"/backends/{id}/undrain")
    assert answer.header("x-prefixgate-handover") == "local; no_prefill"
    assert told["reason"] == "no_prefill"


def test_the_reason_is_that_of_the_engine_that_served_it(pools: Pools, tmp_path: Path) -> None:
    """First it was sent to a decode engine, as the sooner one: a transfer would take minutes."""
    slow = {"min_uncached_tokens": None, "bandwidth": 0.001}
    pools.reset()
    with gateway_for(pools, tmp_path, disagg=slow, timeouts={}) as gateway:
        for engine in pools.decodes:
            engine.behave(status=500)
        answer = ask(gateway, chat("second"))
        assert answer.status == 200
        assert answer.header("x-prefixgate-backend") == gateway.backend_id(pools.prefills[0].url)
        assert answer.header("x-prefixgate-handover") == "local; hosted"


def test_the_limits_of_decode_engines_hold(tmp_path: Path) -> None:
    """Prefill engines have room for all; who generates waits for a slot, and is served."""
    limits = {"decode": {"max_requests": 2}, "gate": None}
    with (
        Pools("sglang", prefills=2, decodes=2) as pools,
        gateway_for(pools, tmp_path, scheduling=limits, timeouts={}) as gateway,
    ):
        go_on = Event()
        for engine in pools.decodes:
            engine.behave(until=go_on)
        with ThreadPoolExecutor(16) as clients:
            sent = [clients.submit(ask, gateway, chat(f"slot {number}")) for number in range(16)]
            gateway.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 12)
            assert [len(engine.legs) for engine in pools.decodes] == [2, 2]
            go_on.set()
            answers = [each.result() for each in sent]
        assert [answer.status for answer in answers] == [200] * 16
        assert {answer.header("x-prefixgate-handover") for answer in answers} == {"remote; needed"}
        assert pools.complaints == []
        gateway.settles_idle()


def test_what_became_cached_while_a_request_waited_counts(tmp_path: Path) -> None:
    """The control is the first of two alike, which both wait: nothing of it was cached."""
    limits = {"decode": {"max_requests": 1}, "gate": None}
    with (
        Pools("sglang") as pools,
        gateway_for(pools, tmp_path, scheduling=limits, timeouts={}) as gateway,
    ):
        go_on, body = Event(), CHAT.stream([text("twice", 16_000)])
        pools.decodes[0].behave(until=go_on)
        with ThreadPoolExecutor(3) as clients:
            clients.submit(ask, gateway, chat("before them"))
            pools.decodes[0].wait(lambda: bool(pools.decodes[0].legs))
            alike = [clients.submit(ask, gateway, body) for _ in range(2)]
            gateway.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 2)
            go_on.set()
            answers = [each.result() for each in alike]
        matched = [int(each.header("x-prefixgate-matched-tokens") or -1) for each in answers]
        assert min(matched) == 0
        assert max(matched) > 3000
