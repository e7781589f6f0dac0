"""The fake engines take what real ones take, wait for whom those wait, and notice what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness import sse
from tests.harness.pd.faults import Fault, after_head, before_head
from tests.harness.pd.kv import Fate, Ledger
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools, known
from tests.harness.pd.reference import CONCURRENT, PROTOCOLS, Handover, same
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES, STREAMING, Route

VLLM = ("nixl_pull", "nixl_push", "mooncake")
KEEPS = (*VLLM, "trtllm")
"""Blocks stay at the prefill engine after its answer."""
TEXT = "t0 t1 t2 t3 t4 "


@pytest.fixture(scope="module", params=PROTOCOLS)
def shared(request: pytest.FixtureRequest) -> Iterator[Pools]:
    with Pools(request.param) as pools:
        yield pools


@pytest.fixture
def pools(shared: Pools) -> Pools:
    shared.reset()
    return shared


def handover(pools: Pools, route: Route = CHAT, **options: Any) -> Handover:
    extra = options.pop("extra", {})
    body = {**route.body(["hello there"]), "max_tokens": 5, **extra}
    prefill, decode = pools.prefills[0], pools.decodes[0]
    return Handover(pools.protocol, known(prefill), decode.url, route.path, body, **options)


def needs(pools: Pools, *protocols: str) -> None:
    if pools.protocol not in protocols:
        pytest.skip(f"not of {pools.protocol}")


@pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
def test_by_the_book(pools: Pools, route: Route) -> None:
    if pools.protocol == "trtllm" and route not in (CHAT, COMPLETIONS):
        pytest.skip("it has no handover there")
    first, second = handover(pools, route).run()
    assert (first.status_code, second.status_code) == (200, 200)
    assert pools.complaints == []
    [prefill] = pools.prefills[0].legs
    [decode] = pools.decodes[0].legs
    assert (prefill.part, decode.part) == (Part.PREFILL, Part.DECODE)
    assert decode.kv is not None
    assert decode.kv.fate is Fate.READ
    assert pools.held == 0
    assert "t0 t1" in second.text


def test_a_stream(pools: Pools) -> None:
    options = {"include_usage": True}
    pools.prefills[0].behave(cached_tokens=3)
    first, second = handover(pools, extra={"stream": True, "stream_options": options}).run()
    stream = sse.read(second.content)
    assert stream.text == TEXT
    assert pools.complaints == []
    usage = stream.payloads[-1]["usage"]
    told = 3 if pools.protocol == "nixl_pull" else usage["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == told
    assert ("event-stream" in first.headers["content-type"]) == (pools.protocol == "sglang")


def test_a_request_for_one_engine(pools: Pools) -> None:
    for engine in pools.engines:
        answer = httpx.post(f"{engine.url}{CHAT.path}", json=CHAT.body(["x"]))
        if pools.protocol == "sglang":
            assert answer.status_code == 400
            assert "bootstrap room" in answer.json()["message"]
        else:
            assert answer.json()["choices"][0]["message"]["content"] == TEXT
            assert engine.legs[0].part is Part.WHOLE
    assert pools.complaints == []


def test_what_the_two_legs_must_have_in_common(pools: Pools) -> None:
    needs(pools, *VLLM, "sglang", "trtllm")

    def other(body: dict[str, Any]) -> None:
        body["messages"] = [{"role": "user", "content": "something else"}]
        body["prompt_token_ids"] = [1, 2]

    pools.prefills[0].patience = 0.1
    _, second = handover(pools, edit_decode=other).run()
    assert second.status_code == 500
    assert pools.complaints


def test_recomputes_when_told_to(pools: Pools) -> None:
    needs(pools, *VLLM)
    pools.decodes[0].recompute = True

    def elsewhere(body: dict[str, Any]) -> None:
        body["kv_transfer_params"]["remote_engine_id"] = "nobody"

    _, second = handover(pools, edit_decode=elsewhere).run()
    assert second.status_code == 200
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    [complaint] = pools.complaints
    assert "nobody" in complaint


@pytest.mark.parametrize("field", ["remote_block_ids", "remote_port", "tp_size", "transfer_mode"])
def test_parameters_that_are_not_as_given_out(pools: Pools, field: str) -> None:
    needs(pools, "nixl_pull")

    def spoil(body: dict[str, Any]) -> None:
        body["kv_transfer_params"][field] = None

    _, second = handover(pools, edit_decode=spoil).run()
    assert second.status_code == 500
    assert field in pools.complaints[0]


def test_parameters_that_were_used_or_have_expired(pools: Pools) -> None:
    needs(pools, "nixl_pull", "trtllm")
    one = handover(pools)
    first, _ = one.run()
    assert "garbage" in one.send_decode(first).text
    assert "were read" in pools.complaints[-1]
    pools.prefills[0].kv.lease = 0.0
    late = handover(pools)
    assert "garbage" in late.run()[1].text
    assert "were expired" in pools.complaints[-1]
    assert pools.prefills[0].kv.fates == [Fate.READ, Fate.EXPIRED]


def test_a_prefill_leg_that_is_not_capped(pools: Pools) -> None:
    needs(pools, *VLLM)
    for change, complaint in (
        ({"max_tokens": 50}, "max_tokens is 50"),
        ({"max_completion_tokens": 50}, "max_completion_tokens is 50"),
        ({"n": 4}, "n is 4"),
        ({"stream": True}, "it streams"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ):
        pools.reset()
        handover(pools, edit_prefill=lambda body, change=change: body.update(change)).send_prefill()
        assert any(complaint in each for each in pools.complaints)
    for wrong in ({"min_tokens": 16}, {"stream_options": {"include_usage": True}}):
        spoiled = handover(pools, edit_prefill=lambda body, wrong=wrong: body.update(wrong))
        assert spoiled.send_prefill().status_code == 400


def test_a_room_or_number_that_is_used_twice(pools: Pools) -> None:
    needs(pools, "sglang", "trtllm", "mooncake")
    handover(pools, room=77, id="u").run()
    again = handover(pools, room=77, id="u")
    again.send_prefill()
    assert any("used before" in complaint for complaint in pools.complaints)


def test_an_id_that_is_in_use(pools: Pools) -> None:
    needs(pools, *VLLM)
    handover(pools, id="u").send_prefill()
    handover(pools, id="u").send_prefill()
    assert "x-request-id u is in use" in pools.complaints


def test_ids_that_differ(pools: Pools) -> None:
    needs(pools, "nixl_pull", "mooncake", "sglang", "trtllm")
    one = handover(pools, id="u")

    def rename(body: dict[str, Any]) -> None:
        one.id = "v"

    if pools.protocol in CONCURRENT:
        pytest.skip("both are under way at once")
    one.edit_decode = rename
    one.run()
    assert any("x-request-id v" in complaint for complaint in pools.complaints)


def test_a_decode_leg_that_never_comes(pools: Pools) -> None:
    needs(pools, *KEEPS)
    now = [0.0]
    ledger = pools.prefills[0].kv
    ledger.clock = lambda: now[0]
    try:
        assert handover(pools).send_prefill().status_code == 200
        assert pools.held > 0
        now[0] = ledger.lease - 0.001
        assert pools.held > 0
        now[0] = ledger.lease
        assert pools.held == 0
        assert ledger.fates == [Fate.EXPIRED]
    finally:
        ledger.clock = Ledger(1.0).clock


def test_a_prefill_leg_that_never_comes(pools: Pools) -> None:
    needs(pools, *CONCURRENT)
    pools.decodes[0].patience = 0.05
    assert handover(pools).send_decode().status_code == 500
    assert "no blocks came" in pools.complaints[0]


def test_sglang_prefill_waits_for_the_decode_leg(pools: Pools) -> None:
    needs(pools, "sglang")
    pools.prefills[0].patience = 0.05
    assert handover(pools).send_prefill().status_code == 500
    assert pools.held == 0


def test_a_client_that_leaves_a_prefill(pools: Pools) -> None:
    """While it computes nothing is kept; SGLang's waits with its blocks and gives them back."""
    prefill = pools.prefills[0]
    if pools.protocol != "sglang":
        prefill.behave(ttft=30.0)
    one = handover(pools, timeout=0.3)
    with pytest.raises(httpx.ReadTimeout):
        one.send_prefill()
    prefill.wait_closed(prefill.requests[0])
    prefill.wait(lambda: pools.held == 0)
    assert prefill.kv.fates == ([Fate.RELEASED] if pools.protocol == "sglang" else [])


def test_a_client_that_leaves_a_transfer(pools: Pools) -> None:
    decode, prefill = pools.decodes[0], pools.prefills[0]
    needs(pools, *VLLM)
    decode.transfer = 30.0
    one = handover(pools, timeout=0.3)
    with pytest.raises(httpx.ReadTimeout):
        one.run()
    decode.wait(lambda: prefill.kv.fates == [Fate.RELEASED])


def test_a_decode_leg_that_is_turned_away_releases_the_blocks(pools: Pools) -> None:
    needs(pools, *VLLM)
    one = handover(pools)
    first = one.send_prefill()
    pools.decodes[0].behave(status=503)
    assert one.send_decode(first).status_code == 503
    assert pools.prefills[0].kv.fates == [Fate.RELEASED]


def test_a_decode_leg_that_is_turned_away_first_has_nothing_kept(pools: Pools) -> None:
    needs(pools, "nixl_push", "mooncake")
    pools.decodes[0].behave(status=400)
    one = handover(pools)
    assert one.send_decode().status_code == 400
    assert one.send_prefill().status_code == 200
    assert pools.prefills[0].kv.fates == [Fate.RELEASED]


def test_a_decode_engine_that_dies_leaves_the_blocks_to_their_lease(pools: Pools) -> None:
    needs(pools, *KEEPS)
    one = handover(pools)
    first = one.send_prefill()
    pools.decodes[0].behave(**before_head(Fault.RESET))
    with pytest.raises(httpx.TransportError):
        one.send_decode(first)
    assert pools.prefills[0].kv.fates == [Fate.HELD]


def test_a_lease_goes_on_while_the_blocks_are_read(pools: Pools) -> None:
    needs(pools, "nixl_pull")
    pools.prefills[0].kv.lease = 0.2
    pools.decodes[0].transfer = 0.5
    _, second = handover(pools).run()
    assert second.json()["choices"][0]["message"]["content"] == TEXT
    assert pools.complaints == []


def test_a_token_that_stops_drops_mooncakes_transfer(pools: Pools) -> None:
    needs(pools, "mooncake")
    pools.prefills[0].first_token_stops = True
    pools.decodes[0].patience = 0.05
    careless = handover(pools, edit_prefill=lambda body: body.update(ignore_eos=False))
    assert careless.run()[1].status_code == 500
    pools.decodes[0].patience = 5.0
    assert handover(pools).run()[1].status_code == 200


def test_a_context_that_is_the_answer(pools: Pools) -> None:
    needs(pools, "trtllm")
    pools.prefills[0].first_token_stops = True
    first = handover(pools).send_prefill()
    assert first.json()["choices"][0]["finish_reason"] == "stop"
    assert pools.held == 0


def test_versions_that_differ(pools: Pools) -> None:
    needs(pools, *VLLM)
    pools.decodes[0].version = "0.34.0"
    try:
        assert handover(pools).run()[1].status_code == 500
    finally:
        pools.decodes[0].version = pools.prefills[0].version


def test_a_prefill_answer_that_is_spoilt(pools: Pools) -> None:
    needs(pools, "nixl_pull")
    pools.prefills[0].spoil = lambda body: body.replace(b"remote_engine_id", b"remote_engine")
    first = handover(pools).send_prefill()
    assert "remote_engine" in first.json()["kv_transfer_params"]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("late", [False, True])
def test_faults_of_a_decode_leg(pools: Pools, fault: Fault, late: bool) -> None:
    decode = pools.decodes[0]
    decode.behave(**(after_head if late else before_head)(fault))
    with RawClient(decode.port, timeout=0.2) as client:
        body = {**CHAT.stream(), "bootstrap_room": 5}
        if pools.protocol == "sglang":
            body |= {"bootstrap_host": "127.0.0.1"}
            body |= {"bootstrap_port": pools.prefills[0].companions[0].port}
            decode.patience = 0.0
            decode.recompute = True
        client.request(CHAT.path, body, headers=[("x-request-id", "u")])
        if fault is Fault.HANG:
            with pytest.raises(TimeoutError):
                client.answer()
            return
        answer = client.answer(lambda answer: len(answer.stream.comments) > 1)
    if fault is Fault.COMMENTS:
        assert answer.end is None
        assert answer.stream.events == []
        return
    if fault is Fault.RESET:
        assert answer.end is not None
        assert (answer.status == 200) == late
    elif late:
        assert answer.status == 200
        assert answer.stream.errors
    else:
        assert answer.status == int(fault)


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.HANG])
def test_faults_of_a_prefill_leg_after_its_head(pools: Pools, fault: Fault) -> None:
    prefill = pools.prefills[0]
    prefill.behave(**after_head(fault, streams=False))
    with RawClient(prefill.port, timeout=0.2) as client:
        client.request(CHAT.path, CHAT.body(["x"]))
        head = client.answer(lambda answer: True)
        assert head.status == 200
        if fault is Fault.HANG:
            with pytest.raises(TimeoutError):
                client.answer()
    assert pools.held == 0


def test_many_at_once(pools: Pools) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = [handover(pools, COMPLETIONS, extra={"prompt": f"p{n}"}) for n in range(40)]
        answers = list(pool.map(lambda run: run.run()[1].status_code, runs))
    assert answers == [200] * 40
    assert pools.complaints == []
    assert pools.held == 0


def test_several_prompts_have_a_room_each() -> None:
    with Pools("sglang") as pools:

        def rooms(body: dict[str, Any], count: int = 2) -> None:
            for name in ("bootstrap_host", "bootstrap_port"):
                body[name] = [body[name]] * count
            body["bootstrap_room"] = [body["bootstrap_room"] + at for at in range(count)]

        batch = {"extra": {"prompt": ["one", "two"]}}
        handover(pools, COMPLETIONS, edit_prefill=rooms, edit_decode=rooms, **batch).run()
        assert pools.complaints == []
        handover(pools, COMPLETIONS, **batch).run()
        assert "not one room for each of 2 prompts" in pools.complaints


def test_an_abort_by_rid_lets_go_of_the_blocks() -> None:
    with Pools("sglang") as pools, ThreadPoolExecutor(1) as pool:
        prefill = pools.prefills[0]
        leg = pool.submit(handover(pools, extra={"rid": "r" * 32}).send_prefill)
        prefill.wait(lambda: bool(prefill.legs))
        while not pools.held:
            time.sleep(0.005)
        httpx.post(f"{prefill.url}/abort_request", json={"rid": "r" * 32})
        assert leg.result().status_code == 500
        assert prefill.kv.fates == [Fate.RELEASED]


def test_ranks_of_data_parallelism() -> None:
    with Pools("sglang", dp_size=4) as pools:
        follows = handover(pools, room=6, edit_prefill=lambda body: body.update(routed_dp_rank=2))
        follows.run()
        assert pools.complaints == []
        other = handover(pools, room=10, edit_prefill=lambda body: body.update(routed_dp_rank=1))
        other.run()
        assert pools.complaints == ["rank 1 for a room of rank 2"]


def test_caps_are_those_of_the_route() -> None:
    with Pools("nixl_pull") as pools:
        body = {**RESPONSES.body(["x"]), "max_output_tokens": 50}
        one = Handover("nixl_pull", known(pools.prefills[0]), "", RESPONSES.path, body)
        one.send_prefill()
        assert pools.complaints == []
        one = handover(pools, MESSAGES, edit_prefill=same)
        began = time.monotonic()
        one.send_prefill()
        assert time.monotonic() - began < 5
        assert pools.complaints == []
