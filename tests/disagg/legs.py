"""What tests of the protocols have in common: bodies, pairings, answers of prefill engines."""

from __future__ import annotations

import json
from typing import Any

from gateway.config import ConnectorName
from gateway.disagg.connector import Connector, Leg, Pairing, Side
from gateway.disagg.connectors import CONNECTORS
from gateway.disagg.ids import PairingIds
from gateway.disagg.route import Route

Json = dict[str, Any]

PULL, PUSH, MOONCAKE, SGLANG, TRTLLM, STORE = (CONNECTORS[name] for name in ConnectorName)
ALL = (PULL, PUSH, MOONCAKE, SGLANG, TRTLLM, STORE)
CAPPING = (PULL, PUSH, MOONCAKE, STORE)
"""Protocols whose prefill engine has to be told to stop."""
MESSAGES = [{"role": "user", "content": 'Tell  me \u00e9 \\ "more".'}]
PROMPT: dict[Route, Json] = {
    Route.CHAT: {"messages": MESSAGES},
    Route.COMPLETIONS: {"prompt": "Once"},
    Route.RESPONSES: {"input": "Once", "instructions": "Be brief."},
    Route.MESSAGES: {"system": "Be brief.", "messages": MESSAGES},
    Route.GENERATE: {"text": "Once"},
    Route.TOKENS: {"token_ids": [1, 2, 3]},
}
CAP = dict.fromkeys(Route, "max_tokens") | {Route.RESPONSES: "max_output_tokens"}
P = Side(host="10.0.0.1", engine_id="p0")
D = Side(host="10.0.0.2", engine_id="d0")
PARAMS = (
    b'{"do_remote_prefill": true,"do_remote_decode":false, "remote_block_ids":[[12,13],[]],'
    b'"remote_engine_id":"e-7","remote_request_id":"cmpl-U-0-1a2b3c4d","remote_host":"localhost",'
    b'"remote_port":5600,"tp_size":1,"new":1e3,"remote_blocks_expiry_time":null}'
)
NIXL_ANSWER = b'{"id":"x","choices":[{"text":"a"}] ,"kv_transfer_params" : %b}' % PARAMS
CONTEXT = (
    b'{"request_type":"context_only", "first_gen_tokens":[5],"ctx_request_id":7,'
    b'"encoded_opaque_state":"b64=="}'
)
CONTEXT_ANSWER = (
    b'{"id":"x","choices":[ {"index":0,"finish_reason":"length","disaggregated_params":%b}],'
    b'"prompt_token_ids":[1, 2,3]}' % CONTEXT
)
ANSWERS: dict[str, bytes | None] = {
    "nixl_pull": NIXL_ANSWER,
    "trtllm": CONTEXT_ANSWER,
    "shared_store": b"{}",
}
"""A good one for each protocol whose decode leg waits for it."""


def routes(connector: Connector) -> list[Route]:
    """Those that a protocol carries."""
    return [route for route in Route if connector.refuses(body_of(route), route) is None]


def body_of(route: Route, **members: Any) -> bytes:
    return json.dumps({"model": "m", **PROMPT[route], **members}, ensure_ascii=False).encode()


def pairing(route: Route, prefill: Side = P, decode: Side = D) -> Pairing:
    return PairingIds().pair(route, prefill, decode)


def legs(connector: Connector, route: Route, body: bytes, prefill: Side = P) -> tuple[Leg, Leg]:
    pair = pairing(route, prefill)
    answer = ANSWERS.get(connector.name)
    return connector.prefill(body, pair), connector.decode(body, pair, answer)


def read(body: bytes) -> Json:
    value: Json = json.loads(body)
    return value


CARRIED = [(connector, route) for connector in ALL for route in routes(connector)]
CAPPED = [(connector, route) for connector in CAPPING for route in routes(connector)]


def name(value: object) -> str | None:
    """A test's name for what it is given."""
    return getattr(value, "name", None) if not isinstance(value, Route) else str(value)
