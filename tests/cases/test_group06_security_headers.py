"""Group 6, its part about trust: which headers cross, and what is said of the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Behaviour
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT

BODY = CHAT.body(["hello"])


def forwarded(request: Recorded) -> dict[str, str]:
    return {
        name.decode().lower(): value.decode()
        for name, value in request.headers
        if name.lower().startswith((b"x-forwarded-", b"forwarded", b"x-real-ip"))
    }


# H01


def test_H01_the_backend_sees_its_own_authority(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    own = f"127.0.0.1:{backend.port}".encode()

    def by_name(request: Recorded) -> Behaviour | None:
        return None if request.header(b"host") == own else Behaviour(status=404)

    backend.rule = by_name
    gw = gateway([backend])
    sent = [
        ("host", "gw.example"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "https"),
        ("cookie", "a=b"),
        ("x-mine", "1"),
    ]
    with gw.client() as client:
        assert client.exchange(CHAT.path, BODY, headers=sent).status == 200
    [request] = backend.requests
    assert request.header(b"cookie") == b"a=b"
    assert request.header(b"x-mine") == b"1"
    # Nobody is trusted here: what the client says of itself is replaced by what is seen of it.
    assert forwarded(request) == {
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-proto": "http",
        "x-forwarded-host": "gw.example",
    }


def test_H01_a_trusted_proxys_word_is_kept_and_added_to(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], server={"trusted_proxies": ["127.0.0.1"]})
    answer = gw.post(
        CHAT.path,
        BODY,
        x_forwarded_for="203.0.113.9, 10.0.0.1",
        x_forwarded_proto="https",
        x_forwarded_host="public.example",
        x_real_ip="203.0.113.9",
    )
    assert answer.status_code == 200
    [request] = backend.requests
    assert forwarded(request) == {
        "x-forwarded-for": "203.0.113.9, 10.0.0.1, 127.0.0.1",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "public.example",
        "x-real-ip": "203.0.113.9",
    }


# H06


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_H06_hop_by_hop_headers_stop_here(
    start_backend: StartBackend, gateway: StartGateway, parser: str
) -> None:
    backend = start_backend()
    gw = gateway([backend], server={"parser": parser})
    sent = [
        ("connection", "close, x-secret"),
        ("x-secret", "1"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic eDp5"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("x-kept", "1"),
    ]
    with gw.client() as client:
        assert client.exchange(CHAT.path, BODY, headers=sent).status == 200
    [request] = backend.requests
    names = {name.lower() for name, _ in request.headers}
    assert b"x-kept" in names
    gone = {name.encode() for name, _ in sent} - {b"x-kept"}
    assert names.isdisjoint(gone)


def test_H06_what_the_gateway_says_cannot_be_taken_away_by_the_client(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend])
    for named in ("x-forwarded-for", "x-request-id", "host", "content-length"):
        with gw.client() as client:
            answer = client.exchange(CHAT.path, BODY, headers=[("connection", f"close, {named}")])
        assert answer.status == 200
        assert backend.requests[-1].header(named.encode()) is not None


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_H06_no_upgrade_happens(
    start_backend: StartBackend, gateway: StartGateway, parser: str, tmp_path: Path
) -> None:
    backend = start_backend()
    gw = gateway([backend], server={"parser": parser})
    sent = [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AA")]
    with gw.client() as client:
        answer = client.exchange(CHAT.path, BODY, headers=sent)
    # Refused, or served as if nothing had been said of it; never switched.
    assert answer.status in (200, 400)
    for request in backend.requests:
        assert request.header(b"upgrade") is None
        assert request.header(b"http2-settings") is None
