from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.api import admin_app
from gateway.config import Admin, AdminRole, AdminUser, ConfigError
from gateway.secrets import hash_key
from tests.admin.client import LOCAL, Client
from tests.admin.control import FakeControl

PAGE = "/v1/backends"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_without_a_token_loopback_peers_are_served(host: str) -> None:
    assert Client(FakeControl(), peer=(host, 1)).ask("GET", PAGE).status_code == 200


@pytest.mark.parametrize(
    "peer",
    [
        ("10.0.0.9", 1),
        ("172.17.0.1", 1),
        ("::ffff:10.0.0.9", 1),
        ("fe80::1", 1),
        ("0.0.0.0", 1),
        ("", 1),
        None,
    ],
)
def test_without_a_token_others_are_told_how_to_set_one(peer: tuple[str, int] | None) -> None:
    answer = Client(FakeControl(), peer=peer).ask("GET", PAGE)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["type"] == "permission_error"
    assert "admin.token" in error["message"]


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_a_forwarded_header_lets_nobody_in_and_keeps_out(name: str) -> None:
    headers = {name: "127.0.0.1"}
    far = Client(FakeControl(), peer=("10.0.0.9", 1)).ask("GET", PAGE, headers=headers)
    assert far.status_code == 403
    near = Client(FakeControl()).ask("GET", PAGE, headers=headers)
    assert near.status_code == 403
    assert "forwarded" in near.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:8080", "null"])
def test_without_a_token_web_pages_are_refused(origin: str) -> None:
    control = FakeControl()
    answer = Client(control).ask("POST", "/v1/index/flush", headers={"origin": origin})
    assert answer.status_code == 403
    assert control.flushed == []


@pytest.mark.parametrize(
    ("base", "status"),
    [
        ("http://localhost:8080", 200),
        ("http://LOCALHOST", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:8080", 200),
        ("http://evil.example:8080", 403),
        ("http://localhost.evil.example", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://10.0.0.1:8080", 403),
    ],
)
def test_names_that_were_made_to_point_here_are_refused(base: str, status: int) -> None:
    assert Client(FakeControl(), base=base).ask("GET", PAGE).status_code == status


@pytest.mark.parametrize(
    "host", ["[::1].evil.example", "[::1]evil", "[::1", "localhost:80:80", "localhost:x", ""]
)
def test_a_host_is_read_as_a_whole(host: str) -> None:
    answer = Client(FakeControl()).ask("GET", PAGE, headers={"host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize("peer", [LOCAL, ("10.0.0.9", 1), None])
def test_with_a_token_only_the_token_counts(peer: tuple[str, int] | None) -> None:
    client = Client(FakeControl(), "s3cret", peer=peer, base="http://gateway.example")
    headers = {"authorization": "Bearer s3cret", "origin": "http://console.example"}
    assert client.ask("GET", PAGE, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer s3cret2"},
        {"authorization": "Bearer s3cre"},
        {"authorization": "Basic s3cret"},
        {"authorization": "s3cret"},
        {"authorization": b"Bearer s3cr\xe9t"},
        [("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")],
        {"x-api-key": "s3cret"},
    ],
)
def test_no_or_another_token(headers: object) -> None:
    answer = Client(FakeControl(), "s3cret").ask("GET", PAGE, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("authentication_error", "authorization")
    assert "s3c" not in answer.text


def test_the_scheme_is_not_case_sensitive() -> None:
    client = Client(FakeControl(), "s3cret")
    assert client.ask("GET", PAGE, headers={"authorization": "bearer s3cret"}).is_success


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/config", "/v1/nothing", "/"])
def test_every_path_is_guarded(path: str) -> None:
    assert Client(FakeControl(), "s3cret").ask("GET", path).status_code == 401


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_is_a_mistake(token: str) -> None:
    with pytest.raises(ConfigError, match="empty"):
        admin_app(FakeControl(), Admin(token=token))


READER, OPERATOR = "pg-the-readers-token", "pg-the-operators-token"
USERS = (
    AdminUser(name="eve", role=AdminRole.READ, hash=hash_key(READER)),
    AdminUser(name="otto", role=AdminRole.OPERATE, hash=hash_key(OPERATOR)),
)


@pytest.mark.parametrize(
    ("method", "path", "body", "needs"),
    [
        ("GET", "/v1/backends", None, AdminRole.READ),
        ("GET", "/v1/config", None, AdminRole.READ),
        ("GET", "/v1/keys", None, AdminRole.READ),
        ("POST", "/v1/explain", {"path": "/v1/x", "body": {"model": "m"}}, AdminRole.READ),
        ("POST", "/v1/index/flush", None, AdminRole.OPERATE),
        ("PUT", "/v1/policy", {"name": "round_robin"}, AdminRole.OPERATE),
        ("PATCH", "/v1/scheduling", {}, AdminRole.OPERATE),
        ("POST", "/v1/backends", {"url": "http://gpu9:1"}, AdminRole.ADMIN),
    ],
)
def test_a_role_allows_what_it_is_for(method: str, path: str, body: Any, needs: AdminRole) -> None:
    client = Client(FakeControl(), settings=Admin(token="s3cret", users=USERS))
    allowed = {AdminRole.READ: 3, AdminRole.OPERATE: 2, AdminRole.ADMIN: 1}[needs]
    statuses = [
        client.ask(method, path, json=body, headers={"authorization": f"Bearer {token}"})
        for token in ("s3cret", OPERATOR, READER)
    ]
    assert [answer.is_success for answer in statuses] == [place < allowed for place in range(3)]
    for refused in statuses[allowed:]:
        assert refused.status_code == 403
        assert f"the role {needs}" in refused.json()["error"]["message"]


def test_backends_are_drained_by_operators_and_removed_by_admins() -> None:
    control = FakeControl()
    [backend] = control.fleet
    client = Client(control, settings=Admin(users=USERS))
    operator = {"authorization": f"Bearer {OPERATOR}"}
    page = f"/v1/backends/{backend.id}"
    assert client.ask("POST", f"{page}/drain", headers=operator).is_success
    assert client.ask("DELETE", page, headers=operator).status_code == 403
    # With users alone, too, nobody comes in without a token.
    assert client.ask("GET", page).status_code == 401


def test_one_token_is_one_users() -> None:
    twice = (*USERS, AdminUser(name="eva", role=AdminRole.ADMIN, hash=hash_key(READER)))
    with pytest.raises(ConfigError, match=r"admin.users\[2\]: 'eva' has another one's token"):
        admin_app(FakeControl(), Admin(users=twice))
