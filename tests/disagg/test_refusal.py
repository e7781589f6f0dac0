"""P09 and what else no protocol carries: it goes to one engine, and the reason is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.disagg.connector import Connector
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import Route, route_of
from tests.disagg.legs import ALL, CARRIED, SGLANG, STORE, body_of, name

REFUSED: list[tuple[dict[str, Any], Refusal]] = [
    ({"n": 2}, Refusal.SEVERAL_ANSWERS),
    ({"n": 4, "stream": True}, Refusal.SEVERAL_ANSWERS),
    ({"n": "2"}, Refusal.SEVERAL_ANSWERS),
    ({"n": 0}, Refusal.SEVERAL_ANSWERS),
    ({"best_of": 3}, Refusal.SEVERAL_ANSWERS),
    ({"use_beam_search": True}, Refusal.SEVERAL_ANSWERS),
    ({"sampling_params": {"n": 2}}, Refusal.SEVERAL_ANSWERS),
    ({"sampling_params": {"best_of": 2}}, Refusal.SEVERAL_ANSWERS),
    ({"sampling_params": {"use_beam_search": True}}, Refusal.SEVERAL_ANSWERS),
    ({"sampling_params": {"prompt_logprobs": 1}}, Refusal.PROMPT_LOGPROBS),
    ({"sampling_params": [{}, {}]}, Refusal.BATCH),
    ({"prompt_logprobs": 1}, Refusal.PROMPT_LOGPROBS),
    ({"prompt_logprobs": 0}, Refusal.PROMPT_LOGPROBS),
    ({"logprob_start_len": 0}, Refusal.PROMPT_LOGPROBS),
    ({"echo": True}, Refusal.ECHO),
    ({"echo": True, "logprobs": 1}, Refusal.ECHO),
    ({"prompt_embeds": "AAAA"}, Refusal.EMBEDDINGS),
    ({"input_embeds": [[0.5]]}, Refusal.EMBEDDINGS),
    ({"previous_response_id": "resp_1"}, Refusal.STORED),
    ({"conversation": "conv_1"}, Refusal.STORED),
    ({"background": True}, Refusal.STORED),
]
ALLOWED: list[dict[str, Any]] = [
    {"n": 1},
    {"n": None},
    {"best_of": 1},
    {"use_beam_search": False},
    {"prompt_logprobs": None},
    {"logprob_start_len": -1},
    {"logprobs": True, "top_logprobs": 3},
    {"echo": False},
    {"prompt_embeds": None},
    {"previous_response_id": None},
    {"background": False},
    {"sampling_params": {"n": 1, "prompt_logprobs": None}},
    {"sampling_params": None},
    {"sampling_params": {}},
    {"tools": [{"n": 2}], "metadata": {"echo": True}},
]
BATCHES = ['["a","b"]', '[ "a" , "b" ]', "[[1,2],[3]]", "[\n[1],\n[2]]", '["\\ud800","b"]']
SINGLE = ['"a"', '["a"]', "[1,2,3]", "[ 1 ]", "[[1,2,3]]", "[]", "null"]


@pytest.mark.parametrize(("members", "why"), REFUSED, ids=json.dumps)
def test_P09_what_cannot_be_carried_is_refused(members: dict[str, Any], why: Refusal) -> None:
    for connector, route in CARRIED:
        assert connector.refuses(body_of(route, **members), route) is why, (connector, route)


@pytest.mark.parametrize("members", ALLOWED, ids=json.dumps)
def test_what_asks_for_nothing_of_it_is_carried(members: dict[str, Any]) -> None:
    for connector, route in CARRIED:
        assert connector.refuses(body_of(route, **members), route) is None, (connector, route)


@pytest.mark.parametrize("connector", ALL, ids=name)
@pytest.mark.parametrize("prompt", BATCHES)
def test_batches_are_refused_but_by_sglang(connector: Connector, prompt: str) -> None:
    why = connector.refuses(b'{"prompt":%b}' % prompt.encode(), Route.COMPLETIONS)
    assert why is (None if connector is SGLANG else Refusal.BATCH)


@pytest.mark.parametrize("connector", ALL, ids=name)
@pytest.mark.parametrize("prompt", SINGLE)
def test_one_prompt_is_no_batch(connector: Connector, prompt: str) -> None:
    body = b'{"prompt":%b}' % prompt.encode()
    assert connector.refuses(body, Route.COMPLETIONS) is None


@pytest.mark.parametrize("connector", ALL, ids=name)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"nonsense", b'{"a":', b'{"prompt":["a",NaN}', b'{"sampling_params":{1}}'),
        '{"prompt":"a"}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b'{"prompt":["a",b]}',
    ],
)
def test_what_cannot_be_edited_is_refused(connector: Connector, body: bytes) -> None:
    assert connector.refuses(body, Route.COMPLETIONS) is Refusal.SPELLING


@pytest.mark.parametrize(
    ("connector", "carried"),
    [
        *((connector, {*Route} - {Route.GENERATE}) for connector in ALL[:3]),
        (ALL[3], {Route.CHAT, Route.COMPLETIONS, Route.GENERATE}),
        (ALL[4], {Route.CHAT, Route.COMPLETIONS}),
        (ALL[5], {*Route} - {Route.GENERATE}),
    ],
    ids=name,
)
def test_the_routes_of_each_protocol(connector: Connector, carried: set[Route]) -> None:
    for route in Route:
        why = None if route in carried else Refusal.ROUTE
        assert connector.refuses(body_of(route), route) is why


@pytest.mark.parametrize(
    ("thinking", "why"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, Refusal.THINKING),
        ({"type": "adaptive"}, Refusal.THINKING),
        ({"type": "disabled"}, None),
        (None, None),
    ],
)
def test_a_cap_below_a_thinking_budget_is_not_asked_for(thinking: Any, why: Refusal | None) -> None:
    body = body_of(Route.MESSAGES, thinking=thinking)
    assert STORE.refuses(body, Route.MESSAGES) is why
    assert ALL[0].refuses(body, Route.MESSAGES) is None
    assert STORE.refuses(body_of(Route.CHAT, thinking=thinking), Route.CHAT) is None


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/chat/completions", Route.CHAT),
        ("POST", "/v1/completions", Route.COMPLETIONS),
        ("POST", "/v1/responses", Route.RESPONSES),
        ("POST", "/v1/messages", Route.MESSAGES),
        ("POST", "/generate", Route.GENERATE),
        ("POST", "/inference/v1/generate", Route.TOKENS),
        ("GET", "/v1/responses", None),
        ("POST", "/v1/embeddings", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/chat/completions/", None),
    ],
)
def test_routes_are_found_by_their_paths(method: str, path: str, route: Route | None) -> None:
    assert route_of(method, path) is route
