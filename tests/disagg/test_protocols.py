"""What each protocol sends on the wire, literally."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import ConnectorName
from gateway.disagg.connector import Connector, NoTransfer, Side
from gateway.disagg.connectors import CONNECTORS
from gateway.disagg.mooncake import engine_ids
from gateway.disagg.route import Route
from tests.disagg.legs import (
    ALL,
    ANSWERS,
    CARRIED,
    CONTEXT,
    CONTEXT_ANSWER,
    MOONCAKE,
    NIXL_ANSWER,
    PARAMS,
    PULL,
    PUSH,
    SGLANG,
    STORE,
    TRTLLM,
    D,
    P,
    body_of,
    legs,
    name,
    pairing,
    read,
)

BODY = body_of(Route.CHAT, stream=True, max_tokens=50)
RANKED = replace(P, dp_size=4)


def test_every_protocol_is_there() -> None:
    assert set(CONNECTORS) == set(ConnectorName)
    assert {connector.name: connector for connector in ALL} == CONNECTORS


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
def test_both_legs_have_the_same_id(connector: Connector, route: Route) -> None:
    pair = pairing(route)
    prefill = connector.prefill(body_of(route), pair)
    decode = connector.decode(body_of(route), pair, ANSWERS.get(connector.name))
    ours = (b"x-request-id", pair.id.encode())
    assert ours in prefill.headers
    assert ours in decode.headers
    assert not decode.final


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
def test_a_decode_leg_is_the_clients_body_to_the_byte(connector: Connector, route: Route) -> None:
    """All that is the protocol's own is put at the end."""
    body = body_of(route, stream=True, max_tokens=50, stop=["é"])
    decode = legs(connector, route, body)[1].body
    if connector is TRTLLM and route is Route.COMPLETIONS:
        decode = decode.replace(b"[1, 2,3]", json.dumps(read(body)["prompt"]).encode(), 1)
    assert decode.startswith(body[:-1])
    assert connector is not STORE or decode == body


# NIXL, pull


def test_nixl_pull_asks_for_blocks_to_be_kept() -> None:
    prefill = PULL.prefill(BODY, pairing(Route.CHAT, RANKED))
    assert read(prefill.body)["kv_transfer_params"] == {
        **{"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None},
        **{"remote_block_ids": None, "remote_host": None, "remote_port": None},
    }
    assert [key for key, _ in prefill.headers] == [b"x-request-id"]


def test_nixl_pull_passes_on_what_it_gets_verbatim() -> None:
    decode = PULL.decode(BODY, pairing(Route.CHAT), NIXL_ANSWER)
    assert decode.body == BODY[:-1] + b',"kv_transfer_params":' + PARAMS + b"}"


def test_nixl_pull_names_the_host_that_settings_know() -> None:
    side = replace(P, side_channel_host="10.9.9.9")
    decode = PULL.decode(BODY, pairing(Route.CHAT, side), NIXL_ANSWER)
    assert PARAMS.replace(b'"localhost"', b'"10.9.9.9"') + b"}" in decode.body


UNUSABLE = [
    None,
    b"",
    b"oops",
    b"[]",
    b'"{}"',
    b"{}",
    b'{"choices":[]}',
    *(
        b'{"kv_transfer_params":%b}' % params
        for params in (
            *(b"null", b"{}", b"[]", b'"x"', b"7", b"true", b'{"do_remote_prefill":true}'),
            PARAMS.replace(b'"do_remote_prefill": true', b'"do_remote_prefill": false'),
            PARAMS.replace(b'"e-7"', b'""'),
            PARAMS.replace(b'"e-7"', b"null"),
            PARAMS.replace(b'"localhost"', b"null"),
            PARAMS.replace(b'"localhost"', b'""'),
            PARAMS.replace(b"5600", b'"x"'),
            PARAMS.replace(b"[[12,13],[]]", b"null"),
            PARAMS[:-1],
        )
    ),
]


@pytest.mark.parametrize("answer", UNUSABLE)
def test_P06_nixl_pull_takes_no_junk(answer: bytes | None) -> None:
    with pytest.raises(NoTransfer) as caught:
        PULL.decode(BODY, pairing(Route.CHAT), answer)
    assert str(caught.value)
    assert PULL.release(pairing(Route.CHAT), answer) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{}", "no kv_transfer_params"),
        (b'{"kv_transfer_params":null}', "no kv_transfer_params"),
        (b'{"kv_transfer_params":{}}', "no kv_transfer_params"),
        (b'{"kv_transfer_params":[]}', "malformed"),
        (b"[]", "not a JSON object"),
    ],
)
def test_P06_the_reason_is_told(answer: bytes, why: str) -> None:
    with pytest.raises(NoTransfer, match=why):
        PULL.decode(BODY, pairing(Route.CHAT), answer)


def test_nixl_pull_releases_by_a_request_that_is_refused() -> None:
    pair = pairing(Route.CHAT)
    release = PULL.release(pair, NIXL_ANSWER)
    assert release is not None
    assert release.to_decode
    assert release.path == "/v1/completions"
    body = read(release.body)
    assert body["kv_transfer_params"] == json.loads(PARAMS)
    assert body["model"] == "prefixgate-releases-a-prompt"
    assert body["max_tokens"] == 1
    assert release.headers == pair.headers()


# NIXL, push


@pytest.mark.parametrize(
    ("side", "engine", "host", "port"),
    [
        (P, "p0", "10.0.0.1", 5600),
        (replace(P, side_channel_port=7000), "p0", "10.0.0.1", 7000),
        (replace(P, side_channel_host="10.9.9.9"), "p0", "10.9.9.9", 5600),
        (replace(P, dp_size=4), "p0_dp{rank}", "10.0.0.1", 5600),
    ],
)
def test_nixl_push_says_where_to_register(side: Side, engine: str, host: str, port: int) -> None:
    side = replace(side, tp_size=2, pp_size=3)
    pair = replace(pairing(Route.CHAT, side), room=7)
    prefill, decode = PUSH.prefill(BODY, pair), PUSH.decode(BODY, pair, None)
    rank = pair.room % side.dp_size
    assert read(prefill.body)["kv_transfer_params"] == {
        **{"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None},
        **{"remote_block_ids": None, "remote_host": None, "remote_port": None},
        "transfer_id": pair.transfer_id,
    }
    assert read(decode.body)["kv_transfer_params"] == {
        **{"do_remote_decode": False, "do_remote_prefill": True},
        **{"remote_engine_id": engine.format(rank=rank), "remote_host": host},
        **{"remote_port": port + rank, "tp_size": 2, "pp_size": 3},
        **{"remote_request_id": pair.id, "transfer_id": pair.transfer_id},
    }
    ranked = (b"x-data-parallel-rank", b"%d" % rank)
    assert (ranked in prefill.headers) is (side.dp_size > 1)
    assert ranked not in decode.headers
    assert PUSH.release(pair, None) is None


# Mooncake


@pytest.mark.parametrize(
    ("side", "engine", "address"),
    [
        (P, "p0", "http://10.0.0.1:8998"),
        (replace(P, bootstrap_port=7), "p0", "http://10.0.0.1:7"),
        (replace(P, host="fd00::1"), "p0", "http://[fd00::1]:8998"),
        (RANKED, "p0_dp{rank}", "http://10.0.0.1:8998"),
        (replace(RANKED, engine_ids=("a", "b", "c", "d")), "{told}", "http://10.0.0.1:8998"),
        (replace(RANKED, engine_ids=("a",)), "p0_dp{rank}", "http://10.0.0.1:8998"),
        (replace(P, engine_id="", engine_ids=("a_dp0",)), "a_dp0", "http://10.0.0.1:8998"),
    ],
)
def test_mooncake_meets_at_the_bootstrap_server(side: Side, engine: str, address: str) -> None:
    pair = replace(pairing(Route.CHAT, side), room=7)
    prefill, decode = MOONCAKE.prefill(BODY, pair), MOONCAKE.decode(BODY, pair, None)
    rank = pair.room % side.dp_size
    assert read(prefill.body)["kv_transfer_params"] == {
        **{"do_remote_decode": True, "do_remote_prefill": False},
        "transfer_id": pair.transfer_id,
    }
    assert read(prefill.body)["ignore_eos"] is True
    theirs = {
        **{"do_remote_decode": False, "do_remote_prefill": True},
        "remote_bootstrap_addr": address,
        "remote_engine_id": engine.format(rank=rank, told="abcd"[rank]),
        "transfer_id": pair.transfer_id,
    }
    assert read(decode.body)["kv_transfer_params"] == theirs
    assert "ignore_eos" not in read(decode.body)
    ranked = (b"x-data-parallel-rank", b"%d" % rank)
    assert (ranked in prefill.headers) is (side.dp_size > 1)
    release = MOONCAKE.release(pair, None)
    assert release is not None
    assert release.to_decode
    assert read(release.body)["kv_transfer_params"] == theirs


def test_mooncakes_engines_tell_their_ids() -> None:
    page = b'{"1":{"engine_id":"u_dp1","worker_addr":{}},"0":{"engine_id":"u_dp0"}}'
    assert engine_ids(page) == ("u_dp0", "u_dp1")
    for wrong in (b"", b"[]", b'{"0":{}}', b'{"0":{"engine_id":7}}', b'{"1":{"engine_id":"a"}}'):
        with pytest.raises(ValueError, match=r"."):
            engine_ids(wrong)


# SGLang


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS, Route.GENERATE], ids=name)
def test_sglang_meets_in_a_room(route: Route) -> None:
    pair = pairing(route, replace(P, bootstrap_port=9000))
    for leg in SGLANG.prefill(body_of(route), pair), SGLANG.decode(body_of(route), pair, None):
        assert read(leg.body) == read(body_of(route)) | {
            **{"bootstrap_host": "10.0.0.1", "bootstrap_port": 9000},
            **{"bootstrap_room": pair.room, "rid": pair.id},
        }
    assert read(SGLANG.decode(BODY, pairing(Route.CHAT), None).body)["bootstrap_port"] == 8998


@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "c"], [[1, 2], [3]]])
def test_sglang_gives_each_prompt_a_room(prompts: list[Any]) -> None:
    pair = pairing(Route.COMPLETIONS)
    body = body_of(Route.COMPLETIONS, prompt=prompts)
    for leg in SGLANG.prefill(body, pair), SGLANG.decode(body, pair, None):
        sent = read(leg.body)
        assert sent["bootstrap_host"] == ["10.0.0.1"] * len(prompts)
        assert sent["bootstrap_port"] == [8998] * len(prompts)
        rooms = sent["bootstrap_room"]
        assert len({*rooms}) == len(prompts)
        assert all(0 <= room < 2**63 for room in rooms)
    last = replace(pair, room=2**63 - 1)
    rooms = read(SGLANG.decode(body, last, None).body)["bootstrap_room"]
    assert all(0 <= room < 2**63 for room in rooms)


def test_sglang_is_told_to_abort() -> None:
    pair = pairing(Route.CHAT)
    release = SGLANG.release(pair, None)
    assert release is not None
    assert not release.to_decode
    assert release.path == "/abort_request"
    assert read(release.body) == {"rid": pair.id}


# TensorRT-LLM


def test_a_context_leg_is_marked_as_one() -> None:
    pair = pairing(Route.CHAT)
    assert read(TRTLLM.prefill(BODY, pair).body)["disaggregated_params"] == {
        "request_type": "context_only",
        "disagg_request_id": pair.room,
    }


@pytest.mark.parametrize(
    ("route", "member"), [(Route.CHAT, "prompt_token_ids"), (Route.COMPLETIONS, "prompt")]
)
def test_a_generation_leg_has_the_state_and_the_ids(route: Route, member: str) -> None:
    decode = TRTLLM.decode(body_of(route, stream=True), pairing(route), CONTEXT_ANSWER)
    state = CONTEXT.replace(b"context_only", b"generation_only")
    assert b'"disaggregated_params":' + state in decode.body
    assert b"[1, 2,3]" in decode.body
    sent = read(decode.body)
    assert sent[member] == [1, 2, 3]
    assert sent["stream"] is True


def test_a_generation_leg_without_ids_keeps_the_prompt() -> None:
    answer = CONTEXT_ANSWER.replace(b'"prompt_token_ids":[1, 2,3]', b'"prompt_token_ids":null')
    body = body_of(Route.COMPLETIONS)
    decode = TRTLLM.decode(body, pairing(Route.COMPLETIONS), answer)
    assert read(decode.body)["prompt"] == read(body)["prompt"]


@pytest.mark.parametrize("reason", [b'"stop"', b'"tool_calls"', b"null"])
def test_an_answer_that_is_complete_is_the_answer(reason: bytes) -> None:
    answer = CONTEXT_ANSWER.replace(b'"length"', reason)
    body = body_of(Route.CHAT)
    leg = TRTLLM.decode(body, pairing(Route.CHAT), answer)
    assert leg.final
    assert leg.body == b'{"id":"x","choices":[ {"index":0,"finish_reason":%b}]}' % reason
    with pytest.raises(NoTransfer, match="stream"):
        TRTLLM.decode(body_of(Route.CHAT, stream=True), pairing(Route.CHAT), answer)


@pytest.mark.parametrize(
    "answer",
    [
        *(None, b"", b"oops", b"{}", b'{"choices":[]}', b'{"choices":[1]}', b'{"choices":{}}'),
        b'{"choices":[{"finish_reason":"length"}]}',
        CONTEXT_ANSWER.replace(CONTEXT, b"null"),
        CONTEXT_ANSWER.replace(CONTEXT, b"{}"),
        CONTEXT_ANSWER.replace(CONTEXT, b"[]"),
        CONTEXT_ANSWER.replace(b'"ctx_request_id":7', b'"ctx_request_id":null'),
        CONTEXT_ANSWER.replace(b'"ctx_request_id":7', b'"ctx_request_id":"7"'),
        CONTEXT_ANSWER[:-1],
    ],
)
def test_P06_a_generation_leg_takes_no_junk(answer: bytes | None) -> None:
    with pytest.raises(NoTransfer):
        TRTLLM.decode(BODY, pairing(Route.CHAT), answer)


# a shared store


@pytest.mark.parametrize("answer", [None, b"", b"oops", b"{}"])
def test_a_shared_store_waits_for_no_parameters(answer: bytes | None) -> None:
    pair = pairing(Route.CHAT)
    assert STORE.decode(BODY, pair, answer).body == BODY
    assert read(STORE.prefill(BODY, pair).body) == read(BODY) | {"max_tokens": 1, "stream": False}
    assert STORE.release(pair, answer) is None
    assert not STORE.holds


@pytest.mark.parametrize(
    ("connector", "prefill", "decode", "fits"),
    [
        *((connector, P, D, True) for connector in ALL),
        *((connector, replace(P, cache_dtype="fp8"), D, True) for connector in ALL),
        *(
            (connector, replace(P, cache_dtype="fp8"), replace(D, cache_dtype="auto"), False)
            for connector in ALL
        ),
        (PULL, replace(P, version="0.33.0"), replace(D, version="0.32.0"), False),
        (PULL, replace(P, version="0.33.0"), replace(D, version="0.33.0"), True),
        (PULL, replace(P, version="0.33.0"), D, True),
        (PUSH, replace(P, version="0.33.0"), replace(D, version="0.32.0"), False),
        (MOONCAKE, replace(P, version="0.33.0"), replace(D, version="0.32.0"), True),
        (PULL, replace(P, tp_size=2), replace(D, tp_size=8), True),
        (PULL, replace(P, tp_size=8), replace(D, tp_size=2), True),
        (PULL, replace(P, tp_size=2), replace(D, tp_size=3), False),
        (PULL, replace(P, engine_id=""), D, True),
        (PULL, replace(P, page_size=16), replace(D, page_size=64), True),
        (PUSH, replace(P, engine_id=""), D, False),
        (PUSH, P, replace(D, engine_id=""), True),
        (MOONCAKE, replace(P, engine_id=""), D, False),
        (MOONCAKE, replace(P, engine_id="", engine_ids=("a",)), D, True),
        (MOONCAKE, replace(P, engine_id="", engine_ids=("a",), dp_size=2), D, False),
        (SGLANG, replace(P, page_size=16), replace(D, page_size=64), False),
        (SGLANG, replace(P, page_size=16), replace(D, page_size=16), True),
    ],
)
def test_engines_that_do_not_fit_are_not_paired(
    connector: Connector, prefill: Side, decode: Side, fits: bool
) -> None:
    why = connector.mismatch(prefill, decode)
    assert (why is None) is fits
    assert why is None or why
