"""Group 10, its part about keys: whose a request is, and what is charged for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.secrets import hash_key
from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Cut, Framing
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, EMBEDDINGS, Json, text

BODY = CHAT.body(["hello"])
KEYS = {"one": "pg-the-key-of-tenant-one", "two": "pg-the-key-of-tenant-two"}
ONE, TWO = ({"x-api-key": key} for key in KEYS.values())
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def auth(**limits: int) -> Json:
    entries = [
        {"name": name, "hash": hash_key(key), "limits": limits} for name, key in KEYS.items()
    ]
    return {"enabled": True, "open_metrics": True, "keys": entries}


def used(gw: GatewayProcess, name: str = "one") -> Json:
    [found] = [view for view in gw.admin("GET", "/keys") if view["name"] == name]
    view: Json = found
    return view


def ask(gw: GatewayProcess, body: Json = BODY, key: dict[str, str] = ONE, **headers: str) -> Any:
    return gw.http.post(CHAT.path, json=body, headers={**key, **headers})


def settled(gw: GatewayProcess, tokens: int) -> None:
    """All is given back, and so many tokens are charged."""
    gw.settles_idle()
    view = used(gw)
    assert (view["concurrent"], view["tokens_used"], view["tokens_total"]) == (0, tokens, tokens)


# Q10


def test_Q10_a_header_of_the_clients_choice_makes_no_tenants(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    limits = {"max_requests": 1, "max_wait": 20.0}
    gw = gateway(
        [backend],
        auth=auth(),
        scheduling={"decode": limits, "prefill": limits, "tenants": {"header": "x-team"}},
    )
    backend.behave(n_tokens=300)
    backend.next(ttft=1.0)

    def send(key: dict[str, str], **headers: str) -> RawClient:
        client = gw.client()
        client.request(CHAT.path, CHAT.stream(), headers=list({**key, **headers}.items()))
        return client

    clients = [send(ONE)]
    backend.wait_requests(1)
    clients += [send(ONE, **{"x-team": f"invented {number}"}) for number in range(20)]
    gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 20)
    clients.append(send(TWO, **{"x-mine": "1"}))
    metrics = gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 21)
    # However many names were invented.
    assert metrics.total("prefixgate_queue_tenants", model="m") == 2
    for client in clients:
        assert client.answer().stream.done
    order = [request.header(b"x-mine") for request in backend.requests]
    assert order.index(b"1") <= 2
    teams = {request.header(b"x-team") for request in backend.requests}
    assert teams == {b"one", b"two"}


# Q11


def test_Q11_no_backend_costs_no_tokens(gateway: StartGateway) -> None:
    gw = gateway([], auth=auth(tokens_per_minute=1000))
    assert ask(gw).status_code == 503
    settled(gw, 0)
    # The request counts: it was let in.
    assert used(gw)["requests_total"] == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        {"status": 500},
        {"status": 503},
        {"status": 400},
        {"script": (Cut.RST,)},
        {"body": b"x" * 900, "cut_after": 300},
    ],
    ids=["500", "503", "400", "reset", "broken off"],
)
def test_Q11_what_was_not_served_costs_no_tokens(
    start_backend: StartBackend, gateway: StartGateway, behaviour: dict[str, Any]
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(tokens_per_minute=1000))
    backend.behave(**behaviour)
    assert ask(gw).status_code >= 400
    settled(gw, 0)


def test_Q11_who_leaves_in_the_queue_pays_nothing(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(), scheduling={"decode": {"max_requests": 1}})
    backend.behave(ttft=30.0)
    running = gw.client()
    running.request(CHAT.path, CHAT.stream(), headers=list(TWO.items()))
    backend.wait_requests(1)
    waiting = gw.client()
    waiting.request(CHAT.path, CHAT.stream([text("long", 4000)]), headers=list(ONE.items()))
    gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 1)
    assert used(gw)["tokens_used"] > 1000
    waiting.close()
    gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 0)
    view = used(gw)
    assert (view["tokens_used"], view["tokens_total"], view["concurrent"]) == (0, 0, 0)
    running.close()
    gw.settles_idle()


def test_Q11_what_was_served_costs_what_the_engine_says(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(tokens_per_minute=1000))
    backend.behave(body=json.dumps({"usage": USAGE}).encode())
    first = ask(gw)
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    settled(gw, 120)
    second = ask(gw)
    # What the first one cost, and what is reserved for this one.
    assert int(second.headers["x-ratelimit-remaining-tokens"]) <= 880
    settled(gw, 240)
    assert used(gw, "two")["tokens_used"] == 0
    metrics = gw.metrics()
    assert metrics.by("prefixgate_key_tokens_total", "key") == {"one": 240}
    assert metrics.by("prefixgate_key_requests_total", "key") == {"one": 2}
    backend.behave(body=json.dumps({"usage": {"prompt_tokens": 7, "total_tokens": 7}}).encode())
    gw.http.post(EMBEDDINGS.path, json=EMBEDDINGS.body(["x"]), headers=ONE)
    settled(gw, 247)


@pytest.mark.parametrize(
    "how",
    [
        {"texts": ("x" * 400_000,)},
        {"texts": ("x" * 400_000,), "pieces": 50},
        {"texts": ("x" * 300_000,), "framing": Framing.CHUNKED, "pieces": 3},
        {"gzip": True},
    ],
    ids=["too large to hold", "in pieces", "of a size not known", "compressed"],
)
def test_Q11_whole_answers_that_are_only_passed_on_cost_what_the_engine_says(
    start_backend: StartBackend, gateway: StartGateway, how: dict[str, Any]
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth())
    backend.behave(**how)
    told = ask(gw).json()["usage"]
    assert told["completion_tokens"] > 0
    settled(gw, told["total_tokens"])


def test_Q11_a_limit_is_answered_with_429_and_when_to_come_again(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(requests_per_minute=2))
    assert [ask(gw).status_code for _ in range(2)] == [200, 200]
    refused = ask(gw)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
    assert ask(gw, key=TWO).status_code == 200
    limited = gw.metrics().by("prefixgate_limited_requests_total", "limit")
    assert limited == {"requests": 1}
    assert len(backend.requests) == 3


def test_Q11_tokens_that_are_used_up_hold_the_next_one_back(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(tokens_per_minute=100))
    backend.behave(body=json.dumps({"usage": USAGE}).encode())
    assert ask(gw).status_code == 200
    assert ask(gw).status_code == 429
    assert gw.metrics().by("prefixgate_limited_requests_total", "limit") == {"tokens": 1}
    settled(gw, 120)


def test_Q11_a_place_is_held_for_the_whole_answer(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(max_concurrent=1))
    backend.behave(itl=0.05, n_tokens=1000)
    running = gw.client()
    running.request(CHAT.path, CHAT.stream(), headers=list(ONE.items()))
    running.events(5)
    assert ask(gw).status_code == 429
    running.close()
    gw.settles_idle()
    backend.behave()
    assert ask(gw).status_code == 200
    # Also of those that are refused: none is lost.
    for body in ({"model": "nobody"}, {}):
        for _ in range(3):
            assert ask(gw, body).status_code in (400, 404)
    assert ask(gw).status_code == 200


def test_Q11_who_leaves_in_the_body_gives_the_place_back(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    gw = gateway([start_backend()], auth=auth(max_concurrent=1))
    with gw.client() as client:
        key = KEYS["one"].encode()
        head = b"POST /v1/x HTTP/1.1\r\nhost: x\r\nx-api-key: %b\r\ncontent-length: 9\r\n\r\n"
        client.send(head % key + b"{")
        gw.settles(lambda metrics: metrics.total("prefixgate_key_requests_total", key="one") == 1)
        assert ask(gw).status_code == 429
    gw.settles(lambda metrics: metrics.outcomes.get("cancelled") == 1)
    assert ask(gw).status_code == 200


# T07


def test_T07_of_a_stream_that_was_left_the_part_is_charged(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    log, backend = tmp_path / "access.jsonl", start_backend()
    gw = gateway([backend], auth=auth(tokens_per_minute=100_000), log={"access": str(log)})
    backend.behave(itl=0.05, n_tokens=1000)
    client = gw.client()
    client.request(CHAT.path, CHAT.stream([text("prompt", 2000)]), headers=list(ONE.items()))
    client.events(7)
    client.close()
    gw.settles_idle()
    view = used(gw)
    gw.stop()
    [line] = [json.loads(line) for line in log.read_text().splitlines()]
    assert (line["outcome"], line["key"]) == ("cancelled", "one")
    assert 6 <= line["output_tokens"] < 100
    assert view["tokens_total"] == line["prompt_tokens"] + line["output_tokens"]
    assert view["tokens_used"] == view["tokens_total"]
