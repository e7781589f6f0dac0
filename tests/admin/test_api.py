from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from gateway.admin import api
from gateway.admin.redaction import REDACTED
from gateway.config import Scheduling
from gateway.scheduling.ticket import Ticket
from gateway.types import Role
from policies.base import RouteRequest
from tests.admin.client import Client
from tests.admin.control import NOW, FakeControl


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def client(control: FakeControl) -> Client:
    return Client(control)


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param"}
    found: dict[str, Any] = body["error"]
    return found


# backends


def test_list_and_get(control: FakeControl, client: Client) -> None:
    [entry] = client.ask("GET", "/v1/backends").json()
    assert entry == {
        "id": control.first,
        "url": "http://gpu1:8000",
        "kind": "vllm",
        "role": "unified",
        "models": ["m"],
        "adapters": {},
        "max_model_len": {"m": 4096},
        "state": "healthy",
        "state_seconds": 5.0,
        "cause": "",
        "failed_probes": 0,
        "breaker": {
            "state": "closed",
            "cause": "",
            "since_seconds": 5.0,
            "until_seconds": None,
            "failures": 0,
            "trials": 0,
        },
        "busy_seconds": None,
        "source": "config",
        "capacity_tokens": 16_000,
        "block_size": 16,
        "load": entry["load"],
        "reported": None,
    }
    assert entry["load"]["in_flight"] == 0
    assert client.ask("GET", f"/v1/backends/{control.first}").json() == entry


def test_X07_why_a_backend_is_out(control: FakeControl, client: Client) -> None:
    backend = control.fleet.get(control.first)
    for _ in range(control.config.health.unhealthy_after):
        control.fleet.probe_failed(backend, "GET /health: status 503")
    entry = client.ask("GET", f"/v1/backends/{backend.id}").json()
    assert (entry["state"], entry["cause"]) == ("ejected", "GET /health: status 503")
    assert entry["failed_probes"] == control.config.health.unhealthy_after


def test_X07_why_a_backend_gets_no_requests(control: FakeControl, client: Client) -> None:
    backend = control.fleet.get(control.first)
    for _ in range(control.config.breaker.failures):
        control.fleet.report_failure(backend.id, "reset")
    control.fleet.report_busy(backend.id, 8.0)
    entry = client.ask("GET", f"/v1/backends/{backend.id}").json()
    assert (entry["state"], entry["cause"]) == ("ejected", "5 requests in a row failed: reset")
    assert entry["breaker"] == {
        "state": "open",
        "cause": "5 requests in a row failed: reset",
        "since_seconds": 5.0,
        "until_seconds": 0.0,  # the fleet's clock here is 5 s behind
        "failures": 5,
        "trials": 0,
    }
    assert entry["busy_seconds"] == 3.0


def test_add(control: FakeControl, client: Client) -> None:
    body = {"url": "http://GPU2:8000/", "role": "decode"}
    answer = client.ask("POST", "/v1/backends", json=body)
    assert answer.status_code == 201
    entry = answer.json()
    assert (entry["url"], entry["role"]) == ("http://gpu2:8000", "decode")
    assert (entry["state"], entry["kind"], entry["source"]) == ("starting", None, "admin")
    again = client.ask("POST", "/v1/backends", json=body)
    assert again.status_code == 200
    assert again.json()["id"] == entry["id"]
    assert len(list(control.fleet)) == 2


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"url": "gpu2:8000"}, "url", "'gpu2:8000'"),
        ({"url": "http://u:pw@gpu2"}, "url", "'@'"),
        ({"url": 5}, "url", "Expected `str`"),
        ({"url": "http://gpu2", "role": "boss"}, "role", "'boss'"),
        ({"url": "http://gpu2", "models": []}, "models", "[]"),
        ({"url": "http://gpu2", "models": ["m", 3]}, "models[1]", "got 3"),
        ({"url": "http://gpu2", "capacity_tokens": 0}, "capacity_tokens", ">= 1"),
        ({"url": "http://gpu2", "speed": 9}, "speed", "`speed`"),
        ({}, None, "`url`"),
        ([], None, "object"),
    ],
)
def test_add_refuses(
    control: FakeControl, client: Client, body: object, param: str | None, says: str
) -> None:
    found = error(client.ask("POST", "/v1/backends", json=body), 400)
    assert found["type"] == "invalid_request_error"
    assert found["param"] == param
    assert says in found["message"]
    assert "pw" not in found["message"]
    assert len(list(control.fleet)) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"nonsense", b"\xff", b'"\xff"', b"[" * 100_000])
def test_no_json(client: Client, content: bytes) -> None:
    assert "body" in error(client.ask("POST", "/v1/backends", content=content), 400)["message"]


def test_patch(control: FakeControl, client: Client) -> None:
    path = f"/v1/backends/{control.first}"
    answer = client.ask("PATCH", path, json={"role": "prefill", "models": ["x"]})
    assert answer.status_code == 200
    assert (answer.json()["role"], answer.json()["models"]) == ("prefill", ["x"])
    assert control.fleet.get(control.first).role is Role.PREFILL
    assert client.ask("PATCH", path, json={"models": None}).json()["models"] == ["m"]
    found = error(client.ask("PATCH", path, json={"capacity_tokens": -1}), 400)
    assert found["param"] == "capacity_tokens"
    error(client.ask("PATCH", path, json={"url": "http://elsewhere"}), 400)


def test_drain_and_undrain(control: FakeControl, client: Client) -> None:
    path = f"/v1/backends/{control.first}"
    control.load(control.first).in_flight = 2
    answer = client.ask("POST", f"{path}/drain")
    assert answer.status_code == 202
    assert (answer.json()["state"], answer.json()["load"]["in_flight"]) == ("draining", 2)
    control.load(control.first).in_flight = 0
    assert client.ask("POST", f"{path}/drain").status_code == 200
    answer = client.ask("POST", f"{path}/undrain")
    assert (answer.status_code, answer.json()["state"]) == (200, "healthy")


def test_remove(control: FakeControl, client: Client) -> None:
    path = f"/v1/backends/{control.first}"
    answer = client.ask("DELETE", path)
    assert (answer.status_code, answer.content) == (204, b"")
    error(client.ask("DELETE", path), 404)
    assert client.ask("GET", "/v1/backends").json() == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/backends/nope", None),
        ("PATCH", "/v1/backends/nope", {}),
        ("DELETE", "/v1/backends/nope", None),
        ("POST", "/v1/backends/nope/drain", None),
        ("POST", "/v1/backends/nope/undrain", None),
        ("POST", "/v1/index/flush", {"backend": "nope"}),
    ],
)
def test_unknown_backend(client: Client, method: str, path: str, body: object) -> None:
    found = error(client.ask(method, path, json=body), 404)
    assert (found["type"], found["param"]) == ("not_found_error", "backend")
    assert "'nope'" in found["message"]


# policies


def test_discovery(control: FakeControl, client: Client) -> None:
    assert client.ask("GET", "/v1/discovery").json() == [
        {
            "name": "dns:A:engines:8000",
            "source": "dns",
            "backends": [control.first],
            "unreachable": 1,
            "age_seconds": 2.5,
            "failures": 3,
            "cause": "no answer within 5.0 s",
        }
    ]


def test_policies(client: Client) -> None:
    [entry] = client.ask("GET", "/v1/policies").json()
    assert (entry["name"], entry["current"], entry["defaults"]) == ("round_robin", True, {})
    assert entry["params_schema"]["$ref"]


def test_policy(control: FakeControl, client: Client) -> None:
    assert client.ask("GET", "/v1/policy").json() == {"name": "round_robin", "params": {}}
    wanted = {"name": "prefix_affinity", "params": {}}
    answer = client.ask("PUT", "/v1/policy", json=wanted)
    assert (answer.status_code, answer.json()) == (200, wanted)
    assert control.decides.name == "prefix_affinity"


@pytest.mark.parametrize(
    "body",
    [{"name": "chance"}, {"name": "round_robin", "params": {"x": 1}}, {"params": 1}, {"nam": "x"}],
)
def test_policy_refuses(control: FakeControl, client: Client, body: object) -> None:
    assert error(client.ask("PUT", "/v1/policy", json=body), 400)["message"]
    assert control.decides.name == "round_robin"


# explain, index, queues, requests, config


def test_explain(control: FakeControl, client: Client) -> None:
    prompt = {"model": "m", "messages": [{"role": "user", "content": "geheim \u00e4"}]}
    body = {"path": "/v1/chat/completions", "headers": {"x-session": "1"}, "body": prompt}
    answer = client.ask("POST", "/v1/explain", json=body)
    assert answer.status_code == 200
    [(method, path, headers, sent)] = control.explained
    assert (method, path, headers) == ("POST", "/v1/chat/completions", {"x-session": "1"})
    assert msgspec.json.decode(sent) == prompt
    found = answer.json()
    assert found["decision"] == {
        "backend": control.first,
        "reason": "prefix",
        "why": "it is warm",
        "waits": False,
        "handover": None,
    }
    assert found["match"] == {"blocks": {control.first: 4}, "tokens": {control.first: 100.5}}
    assert "geheim" not in answer.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"path": "/v1/chat/completions"}, "body"),
        ({"path": "v1"}, "path"),
        ({"body": {}}, None),
        ({"path": "/", "headers": {"a": 1}}, "headers.a"),
    ],
)
def test_explain_refuses(client: Client, body: object, param: str | None) -> None:
    assert error(client.ask("POST", "/v1/explain", json=body), 400)["param"] == param


def test_index(control: FakeControl, client: Client) -> None:
    found = client.ask("GET", "/v1/index").json()
    assert found["max_blocks"] == 1000
    assert found["backends"] == {control.first: {"blocks": 0, "tokens": 0.0}}


def test_flush(control: FakeControl, client: Client) -> None:
    assert client.ask("POST", "/v1/index/flush").status_code == 200
    assert client.ask("POST", "/v1/index/flush", json={}).status_code == 200
    assert client.ask("POST", "/v1/index/flush", json={"model": "m"}).status_code == 200
    both = {"backend": control.first, "model": "m"}
    assert client.ask("POST", "/v1/index/flush", json=both).json()["blocks"] == 0
    assert control.flushed == [(None, None), (None, None), (None, "m"), (control.first, "m")]
    error(client.ask("POST", "/v1/index/flush", json={"modell": "m"}), 400)
    assert len(control.flushed) == 4


def test_queues(client: Client) -> None:
    [pool] = client.ask("GET", "/v1/queues").json()
    assert (pool["model"], pool["role"]) == ("m", "unified")
    assert set(pool["queues"]) == {"prefill", "decode"}
    assert pool["queues"]["decode"]["waiting"] == 0
    [line] = pool["backends"].values()
    assert line == {
        "waiting": 0,
        "held_seconds": 0.0,
        "pending_seconds": 0.0,
        "open": True,
        "hold": None,
    }


def test_queues_show_what_is_held_for_a_closed_gate(control: FakeControl, client: Client) -> None:
    load = control.load(control.first)
    for _ in range(2):
        request = RouteRequest("m", prompt_tokens=20_000, now=NOW)
        control.pool.submit(Ticket(request, lambda lease: None, lambda refusal: None))
    [pool] = client.ask("GET", "/v1/queues").json()
    assert pool["backends"][load.id] == {
        "waiting": 1,
        "held_seconds": pytest.approx(2.7, rel=0.05),
        "pending_seconds": pytest.approx(2.7, rel=0.05),
        "open": False,
        "hold": "gate",
    }
    assert pool["queues"]["decode"]["waiting"] == 1


# scheduling


def test_scheduling_is_shown_as_it_holds_now(control: FakeControl, client: Client) -> None:
    found = client.ask("GET", "/v1/scheduling").json()
    assert found == msgspec.json.decode(msgspec.json.encode(Scheduling()))


def test_a_change_of_scheduling_leaves_the_rest(control: FakeControl, client: Client) -> None:
    first = {"gate": None, "prefill": {"max_wait": 5.0}, "tenants": {"weights": {"a": 2.0}}}
    second = {"prefill": {"max_waiting": 7}, "tenants": {"weights": {"b": 3.0}}}
    for body in (first, second):
        answer = client.ask("PATCH", "/v1/scheduling", json=body)
        assert answer.status_code == 200
    now = control.pool.scheduling
    assert now.gate is None
    assert (now.prefill.max_wait, now.prefill.max_waiting) == (5.0, 7)
    assert now.prefill.max_requests == 64
    # Weights are one setting, not one for each tenant: how else could one be taken back?
    assert now.tenants.weights == {"b": 3.0}
    assert answer.json() == msgspec.json.decode(msgspec.json.encode(now))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"gait": 1}, "gait"),
        ({"gate": 0}, "gate"),
        ({"prefill": {"max_wait": -1}}, "prefill.max_wait"),
        ({"order": "arrival", "target": None}, "target"),
        ({"ranges": [{"min_tokens": 0}]}, "ranges[0].min_tokens"),
        ([], None),
    ],
)
def test_a_wrong_change_of_scheduling_changes_nothing(
    control: FakeControl, client: Client, body: object, param: str | None
) -> None:
    assert error(client.ask("PATCH", "/v1/scheduling", json=body), 400)["param"] == param
    assert control.pool.scheduling == Scheduling()


def test_requests(client: Client) -> None:
    [request] = client.ask("GET", "/v1/requests").json()
    assert (request["id"], request["phase"], request["backend"]) == ("a-1", "queue", None)


def test_config_hides_the_secrets(client: Client) -> None:
    answer = client.ask("GET", "/v1/config")
    assert "t0p-secret" not in answer.text
    found = answer.json()
    assert found["admin"]["token"] == REDACTED
    assert found["backends"][0]["url"] == "http://gpu1:8000"
    assert found["index"]["capacity_tokens"] == 500_000


# what every route has in common


def test_answers_are_not_to_be_kept(client: Client) -> None:
    assert client.ask("GET", "/v1/index").headers["cache-control"] == "no-store"


def test_head(client: Client) -> None:
    answer = client.ask("HEAD", "/v1/index")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/backends/", "/v1/backends/a/b", "/v2/backends"])
def test_no_such_page(client: Client, path: str) -> None:
    found = error(client.ask("GET", path), 404)
    assert found["type"] == "not_found_error"
    assert "/admin/openapi.json" in found["message"]


def test_wrong_method(client: Client) -> None:
    answer = client.ask("PUT", "/v1/backends")
    found = error(answer, 405)
    assert found["type"] == "method_not_allowed_error"
    allowed = {name.strip() for name in answer.headers["allow"].split(",")}
    assert allowed == {"GET", "HEAD", "POST"}
    assert "POST" in found["message"]


def test_too_large(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_BODY", 1000)
    body = {"path": "/", "body": "x" * 1001}
    assert error(client.ask("POST", "/v1/explain", json=body), 413)["type"] == (
        "request_too_large_error"
    )


def test_a_bug_says_nothing_of_the_inside(control: FakeControl, client: Client) -> None:
    control.broken = True
    answer = client.ask("GET", "/v1/backends")
    assert error(answer, 500)["type"] == "internal_error"
    assert "t0p-secret" not in answer.text
