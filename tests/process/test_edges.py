"""Odd methods and targets, and errors in the dialect of whoever made them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, MESSAGES, STREAMING, Route
from tests.process.requests import MAX_BODY, openai_error, still_serves

# methods


@pytest.mark.parametrize("path", ["/v1/models", "/live", "/metrics"])
def test_head_of_our_own_routes(client: RawClient, path: str) -> None:
    client.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = client.answer()
    assert answer.status == 200
    assert answer.body == b""


def test_head_is_forwarded_and_has_no_body(client: RawClient, backend: FakeBackend) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 123\r\n\r\n"
    backend.next(script=(head,))
    client.send(b"HEAD /files/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = client.answer()
    assert (answer.status, answer.header("content-length"), answer.body) == (200, "123", b"")
    [request] = backend.requests
    assert (request.method, request.target, request.body) == ("HEAD", "/files/x", b"")
    assert request.header(b"content-length") is None


@pytest.mark.parametrize("method", ["OPTIONS", "DELETE", "PUT", "PATCH", "PROPFIND"])
def test_other_methods_are_forwarded(client: RawClient, backend: FakeBackend, method: str) -> None:
    backend.next(body=b'{"ok":true}')
    answer = client.exchange("/v1/files/abc", method=method)
    assert (answer.status, answer.json) == (200, {"ok": True})
    [request] = backend.requests
    assert (request.method, request.target) == (method, "/v1/files/abc")


def test_get_keeps_its_query(client: RawClient, backend: FakeBackend) -> None:
    backend.pages["/v1/things"] = b'{"things":[]}'
    answer = client.exchange("/v1/things?a=1&a=2&b=%20x%2F&empty=", method="GET")
    assert (answer.status, answer.json) == (200, {"things": []})
    [request] = [probe for probe in backend.probes if probe.path == "/v1/things"]
    assert request.target == "/v1/things?a=1&a=2&b=%20x%2F&empty="
    assert request.body == b""


def test_an_invented_method_is_refused_or_forwarded(gw: GatewayProcess) -> None:
    with gw.client() as client:
        assert client.exchange("/v1/files", method="BREW").status in (200, 400)
    still_serves(gw)


@pytest.mark.parametrize("path", ["/v1/models", "/live", "/ready", "/metrics"])
def test_our_own_routes_refuse_other_methods(
    client: RawClient, backend: FakeBackend, path: str
) -> None:
    answer = client.exchange(path, {"model": "m"})
    assert answer.status == 405
    assert "GET" in (answer.header("allow") or "")
    openai_error(answer)
    assert backend.requests == []


# targets


@pytest.mark.parametrize(
    "target",
    [
        "/v1/files/a%2Fb%20c",
        "/v1//files///x",
        "//v1/files",
        "/v1/files/%E4%BD%A0",
        "/v1/files/..%2f..%2fetc",
        "/v1/files/x;y=1,2",
        "/v1/files/" + "x" * 8000,
        "/v1/files?q=" + "x" * 8000,
    ],
    ids=lambda target: target[:24],
)
def test_targets_cross_byte_for_byte(client: RawClient, backend: FakeBackend, target: str) -> None:
    assert client.exchange(target, {"model": "m"}).status == 200
    assert [request.target for request in backend.requests] == [target]


def test_a_percent_encoded_route_speaks_its_dialect(
    client: RawClient, backend: FakeBackend
) -> None:
    answer = client.exchange("/v1/chat%2Fcompletions", {"model": "nobody"})
    assert answer.status == 404
    assert openai_error(answer)["code"] == "model_not_found"
    assert backend.requests == []


def test_the_absolute_form_of_a_target(client: RawClient, backend: FakeBackend) -> None:
    """h11 leaves it as it is: refused then, and never glued to a backend's URL."""
    answer = client.exchange(f"http://example.test{CHAT.path}", CHAT.body(["hi"]))
    assert answer.status in (200, 404)
    served = [CHAT.path] if answer.status == 200 else []
    assert [request.target for request in backend.requests] == served


def test_a_very_long_target_breaks_nothing(gw: GatewayProcess) -> None:
    with gw.client() as client:
        try:
            client.request("/v1/files/" + "x" * 1_000_000, method="GET")
            status = client.answer().status
        except (BrokenPipeError, ConnectionResetError):
            status = 0
    assert status in (0, 200, 400, 404, 414, 431)
    still_serves(gw)


# errors in the caller's dialect


def test_an_unknown_model_of_the_list(client: RawClient) -> None:
    answer = client.exchange("/v1/models/nobody/x", method="GET")
    assert answer.status == 404
    error = openai_error(answer)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "nobody/x" in error["message"]


def test_a_known_model_of_the_list(client: RawClient) -> None:
    assert client.exchange("/v1/models/m", method="GET").json["id"] == "m"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "nobody", "messages": []}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        (b"{", 400, "invalid_request_error"),
        (b"x" * (MAX_BODY + 1), 413, "request_too_large"),
    ],
    ids=["unknown model", "no model", "no JSON", "too large"],
)
def test_errors_on_messages_are_anthropics(
    client: RawClient, body: Any, status: int, kind: str
) -> None:
    answer = client.exchange(MESSAGES.path, body)
    assert answer.status == status
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == kind
    assert answer.json["error"]["message"]


@pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
def test_errors_carry_a_request_id(client: RawClient, route: Route) -> None:
    body = route.body(["hello"]) | {"model": "nobody"}
    answer = client.exchange(route.path, body, headers=[("x-request-id", "mine")])
    assert answer.status == 404
    assert answer.header("x-request-id") == "mine"
