"""P01, P03: the prefill leg asks for one token and no stream, validly; the decode leg asks for what
the client did."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.disagg.connector import Connector
from gateway.disagg.route import Route
from tests.disagg.legs import CAP, CAPPED, CARRIED, SGLANG, TRTLLM, Json, body_of, legs, name, read

OURS = {
    "nixl_pull": {"kv_transfer_params"},
    "nixl_push": {"kv_transfer_params"},
    "mooncake": {"kv_transfer_params"},
    "sglang": {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"},
    "trtllm": {"disaggregated_params", "prompt_token_ids"},
    "shared_store": set(),
}
"""Members that a decode leg has besides the client's."""
DROPPED: Json = {
    "stream_options": {"include_usage": True},
    "min_tokens": 16,
    "min_completion_tokens": 16,
    "stop": ["\n"],
    "stop_token_ids": [7],
    "stop_sequences": ["\n"],
    "logprobs": True,
    "top_logprobs": 5,
    "return_token_ids": True,
    "return_prompt_text": True,
}
STAYS: Json = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_object"},
    "chat_template_kwargs": {"enable_thinking": False},
    "documents": [{"text": "d"}],
    "reasoning_effort": "low",
    "thinking": {"type": "disabled"},
    "add_generation_prompt": True,
    "continue_final_message": False,
    "truncate_prompt_tokens": 100,
    "temperature": 0.25,
    "seed": 3,
    "user": "u",
    "n": 1,
    "best_of": 1,
    "echo": False,
    "use_beam_search": False,
    "prompt_logprobs": None,
    "cache_salt": "s",
    "priority": 3,
    "lora_path": "l",
    "vllm_xargs": {"kv_cache_report_mode": "full"},
    "some_field_of_tomorrow": {"stream": True, "max_tokens": 9},
}


def added(connector: Connector, route: Route) -> set[str]:
    """Members that a prefill leg has besides those of the body."""
    more = {"ignore_eos"} if connector.name == "mooncake" else set()
    if route is Route.RESPONSES:
        more |= {"store"}
    return more | OURS[connector.name] - {"prompt_token_ids"}


def prefill_of(connector: Connector, route: Route, **members: Any) -> Json:
    """The prefill leg's body, without what is the protocol's own."""
    leg = read(legs(connector, route, body_of(route, **members))[0].body)
    return {key: leg[key] for key in leg if key not in added(connector, route)}


def decode_of(connector: Connector, route: Route, **members: Any) -> Json:
    leg = read(legs(connector, route, body_of(route, **members))[1].body)
    own = OURS[connector.name]
    if connector is TRTLLM and route is Route.COMPLETIONS:
        leg["prompt"] = read(body_of(route))["prompt"]
    return {key: leg[key] for key in leg if key not in own}


def expected(route: Route, **members: Any) -> Json:
    return read(body_of(route, **members))


def within(route: Route, **members: Any) -> Json:
    """Members that limit the answer, where a route has them."""
    return {"sampling_params": members} if route is Route.TOKENS else members


@pytest.mark.parametrize(("connector", "route"), CAPPED, ids=name)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_tokens": 50},
        {"max_completion_tokens": 50},
        {"max_tokens": 50, "max_completion_tokens": 60},
        {"max_tokens": None},
        {"max_completion_tokens": None, "max_tokens": 50},
        {"max_output_tokens": 50},
        {"max_tokens": 1},
    ],
    ids=str,
)
def test_P01_every_cap_is_one_on_the_prefill_leg_and_the_clients_on_the_other(
    connector: Connector, route: Route, given: Json
) -> None:
    one = dict.fromkeys((*given, CAP[route]), 1)
    prefill = prefill_of(connector, route, **within(route, **given))
    assert prefill == expected(route, **within(route, **one))
    original = within(route, **given)
    assert decode_of(connector, route, **original) == expected(route, **original)


@pytest.mark.parametrize(("connector", "route"), CAPPED, ids=name)
def test_P03_what_is_invalid_or_idle_there_is_taken_from_the_prefill_leg(
    connector: Connector, route: Route
) -> None:
    one = within(route, **{CAP[route]: 1})
    for field, given in DROPPED.items():
        members = {field: given} if field == "stream_options" else within(route, **{field: given})
        assert prefill_of(connector, route, **members) == expected(route, **one)
        assert decode_of(connector, route, **members) == expected(route, **members)


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
@pytest.mark.parametrize("stream", [True, False, None])
def test_P03_a_prefill_leg_never_streams(
    connector: Connector, route: Route, stream: bool | None
) -> None:
    members = {"stream": stream, "stream_options": {"include_usage": True}}
    prefill = prefill_of(connector, route, **members)
    assert prefill["stream"] is False
    assert "stream_options" not in prefill
    assert decode_of(connector, route, **members) == expected(route, **members)
    assert "stream" not in prefill_of(connector, route)


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
def test_P03_what_shapes_the_prompt_stays_on_both_legs(connector: Connector, route: Route) -> None:
    for field, value in STAYS.items():
        members = {field: value}
        assert prefill_of(connector, route, **members)[field] == value
        assert decode_of(connector, route, **members) == expected(route, **members)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS, Route.GENERATE], ids=name)
def test_P01_sglang_is_told_nothing_but_where_to_meet(route: Route) -> None:
    """Its prefill engines know when to stop, and take the first token's log-probabilities."""
    members = DROPPED | {"max_tokens": 50, "max_completion_tokens": 60}
    del members["stream_options"]
    assert prefill_of(SGLANG, route, **members) == expected(route, **members)


def test_P01_generate_keeps_its_sampling_parameters() -> None:
    members = {"sampling_params": {"max_new_tokens": 50, "stop": ["x"]}}
    assert prefill_of(SGLANG, Route.GENERATE, **members) == expected(Route.GENERATE, **members)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS], ids=name)
def test_P01_a_context_leg_keeps_the_caps(route: Route) -> None:
    members = {"max_tokens": 50, "min_tokens": 16, "logprobs": 1}
    assert prefill_of(TRTLLM, route, **members) == expected(route, **members)


@pytest.mark.parametrize(("connector", "route"), CAPPED, ids=name)
def test_a_prefill_engine_stores_no_response(connector: Connector, route: Route) -> None:
    for members in ({}, {"store": True}):
        prefill, decode = legs(connector, route, body_of(route, **members))
        if route is Route.RESPONSES:
            assert read(prefill.body)["store"] is False
        else:
            assert read(prefill.body).get("store") == members.get("store")
        assert read(decode.body).get("store") == members.get("store")


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
def test_of_members_that_come_twice_both_change(connector: Connector, route: Route) -> None:
    twice = b'"stream":true,"max_tokens":9,"max_tokens":8,"stream":true'
    prefill, decode = legs(connector, route, body_of(route)[:-1] + b"," + twice + b"}")
    assert twice in decode.body
    assert prefill.body.count(b'"stream":false') == 2
    assert b'"stream":true' not in prefill.body
    if (connector, route) in CAPPED and route is not Route.TOKENS:
        assert prefill.body.count(b'"max_tokens":1') == 2
        assert b'"max_tokens":8' not in prefill.body
        assert b'"max_tokens":9' not in prefill.body


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
@pytest.mark.parametrize("member", [b'"sampling_params":', b'"vllm_xargs":', b'"extra_args":'])
def test_members_within_members_are_no_trouble(
    connector: Connector, route: Route, member: bytes
) -> None:
    deep = member + (b"{" + member) * 20_000 + b"1" + b"}" * 20_000
    body = body_of(route)[:-1] + b"," + deep + b"}"
    assert connector.refuses(body, route) is None
    for leg in legs(connector, route, body):
        assert deep[len(member) + 1 : -1] in leg.body


@pytest.mark.parametrize(("connector", "route"), CAPPED, ids=name)
@pytest.mark.parametrize("sampling", [None, {}, 7])
def test_sampling_parameters_that_are_none_are_made(
    connector: Connector, route: Route, sampling: Any
) -> None:
    prefill, decode = legs(connector, route, body_of(route, sampling_params=sampling))
    capped = {"max_tokens": 1} if route is Route.TOKENS else sampling
    assert read(prefill.body)["sampling_params"] == capped
    assert read(decode.body)["sampling_params"] == sampling
