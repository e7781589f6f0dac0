"""TLS on both sides, with certificates made for the test."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.conftest import StartBackend
from tests.harness.certificates import Authority, Files
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import ROOT, GatewayProcess
from tests.harness.routes import CHAT, STREAMING, Json

BODY = CHAT.body(["hello"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def here(authority: Authority) -> Files:
    return authority.issue("127.0.0.1", "localhost")


def tls(files: Files, **options: Any) -> Json:
    return {"cert": files.cert, "key": files.key, **options}


# towards clients


@pytest.fixture(scope="module", params=["httptools", "h11"])
def served(
    request: pytest.FixtureRequest,
    authority: Authority,
    here: Files,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[GatewayProcess, FakeBackend]]:
    server = {"tls": tls(here), "parser": request.param}
    directory = tmp_path_factory.mktemp("gateway")
    with FakeBackend() as backend:
        settings = {"backends": [{"url": backend.url}], "server": server}
        with GatewayProcess(settings, directory, tls=authority.client()) as gw:
            yield gw, backend


def test_answers_and_streams_are_whole(served: tuple[GatewayProcess, FakeBackend]) -> None:
    gw, backend = served
    assert f"listening on https://127.0.0.1:{gw.port}," in gw.log
    for route in STREAMING:
        backend.behave(n_tokens=200)
        with gw.http.stream("POST", route.path, json=route.stream()) as answer:
            answer.read()
        assert answer.status_code == 200
        assert answer.content == bytes(backend.requests[-1].answer)
    large = b'{"x":"' + b"y" * 4_000_000 + b'"}'
    backend.behave(body=large)
    assert gw.post(CHAT.path, BODY).content == large
    assert backend.requests[-1].header(b"x-forwarded-proto") == b"https"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "a beginning"])
def test_a_handshake_that_does_not_come_costs_a_head_timeout(
    authority: Authority, here: Files, tmp_path: Path, sent: bytes
) -> None:
    settings = {"server": {"tls": tls(here), "head_timeout": 0.5}}
    with GatewayProcess(settings, tmp_path, tls=authority.client(), ready=False) as gw:
        with socket.create_connection(("127.0.0.1", gw.port), 10.0) as silent:
            silent.sendall(sent)
            started = time.monotonic()
            assert silent.recv(100) == b""
            assert time.monotonic() - started < 5.0
        assert "Traceback" not in gw.log
        assert "ERROR" not in gw.log


def test_a_client_that_leaves_is_noticed(served: tuple[GatewayProcess, FakeBackend]) -> None:
    gw, backend = served
    backend.behave(itl=0.05, n_tokens=10_000)
    with gw.http.stream("POST", CHAT.path, json=CHAT.stream()) as answer:
        next(answer.iter_raw())
        request = backend.requests[-1]
    backend.wait_closed(request)
    gw.settles_idle()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_nothing_older_than_1_2_is_spoken(
    served: tuple[GatewayProcess, FakeBackend], authority: Authority
) -> None:
    gw, _ = served
    for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = authority.client()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        assert _shakes_hands(gw.port, context) is works


def _shakes_hands(port: int, context: ssl.SSLContext) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
                return secure.recv(100).startswith(b"HTTP/1.1 200")
        except (ssl.SSLError, ConnectionError):
            return False


def test_clients_need_a_certificate_where_that_is_said(
    authority: Authority, here: Files, start_backend: StartBackend, tmp_path: Path
) -> None:
    backend = start_backend()
    settings = {
        "backends": [{"url": backend.url}],
        "server": {"tls": tls(here, client_ca=authority.ca)},
    }
    shown = authority.client(authority.issue("client.example"))
    with GatewayProcess(settings, tmp_path, tls=shown) as gw:
        assert gw.post(CHAT.path, BODY).status_code == 200
        assert not _shakes_hands(gw.port, authority.client())
        other = Authority(tmp_path, "other")
        stranger = authority.client(other.issue("client.example"))
        assert not _shakes_hands(gw.port, stranger)
        assert gw.post(CHAT.path, BODY).status_code == 200


def test_an_encrypted_key_takes_its_password_from_the_environment(
    authority: Authority, here: Files, tmp_path: Path
) -> None:
    locked = str(tmp_path / "locked.key")
    _lock(here.key, locked, "the-password")
    settings: Json = {
        "server": {"tls": {"cert": here.cert, "key": locked, "key_password": {"env": "KEY_PW"}}}
    }
    environment = {"KEY_PW": "the-password"}
    with GatewayProcess(settings, tmp_path, tls=authority.client(), environment=environment) as gw:
        assert gw.http.get("/live").status_code == 200
    problem = refuses({"server": {"tls": tls(Files(here.cert, locked))}}, tmp_path)
    assert "server.tls.key_password" in problem


def _lock(key: str, locked: str, password: str) -> None:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    Path(locked).write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    Path(locked).chmod(0o600)


def test_a_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, start_backend: StartBackend, tmp_path: Path
) -> None:
    files = authority.issue("127.0.0.1", "localhost")
    with GatewayProcess({"server": {"tls": tls(files)}}, tmp_path, tls=authority.client()) as gw:
        before = _shown(gw.port, authority)
        renewed = authority.issue("127.0.0.1", "localhost")
        # The certificate alone does not belong to the key: the one in use stays.
        Path(renewed.cert).replace(files.cert)
        _until(lambda: "keeps its certificate" in gw.log)
        assert _shown(gw.port, authority) == before
        Path(renewed.key).replace(files.key)
        _until(lambda: _shown(gw.port, authority) != before)


def _shown(port: int, authority: Authority) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10.0) as plain,
        authority.client().wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# towards backends


@pytest.fixture(scope="module")
def secure_backend(authority: Authority, here: Files) -> Iterator[FakeBackend]:
    with FakeBackend(tls=authority.server(here)) as backend:
        yield backend


def entry(backend: FakeBackend, **options: Any) -> Json:
    return {"url": backend.url, **options}


@pytest.mark.parametrize("where", ["backends.tls", "backend_tls"])
def test_a_backends_authority_is_believed(
    where: str, authority: Authority, secure_backend: FakeBackend, tmp_path: Path
) -> None:
    how = {"ca": authority.ca}
    settings: Json = {"backends": [entry(secure_backend, tls=how)]}
    if where == "backend_tls":
        settings = {"backends": [entry(secure_backend)], "backend_tls": how}
    with GatewayProcess(settings, tmp_path) as gw:
        assert gw.post(CHAT.path, BODY).status_code == 200
        with gw.http.stream("POST", CHAT.path, json=CHAT.stream()) as answer:
            answer.read()
        assert answer.content == bytes(secure_backend.requests[-1].answer)


@pytest.mark.parametrize("how", [{}, {"ca": "another"}], ids=["the system's", "another"])
def test_no_other_is(how: Json, secure_backend: FakeBackend, tmp_path: Path) -> None:
    seen = len(secure_backend.probes) + len(secure_backend.requests)
    how = {"ca": Authority(tmp_path, "other").ca} if how else {}
    settings = {"backends": [entry(secure_backend, tls=how)], "health": {"interval": 0.2}}
    with GatewayProcess(settings, tmp_path, ready=False) as gw:
        _until(lambda: "verify" in gw.admin("GET", "/backends")[0]["cause"].lower())
        assert gw.post(CHAT.path, BODY).status_code == 503
    assert len(secure_backend.probes) + len(secure_backend.requests) == seen


def test_any_is_where_that_is_said(secure_backend: FakeBackend, tmp_path: Path) -> None:
    settings = {"backends": [entry(secure_backend)], "backend_tls": {"insecure": True}}
    with GatewayProcess(settings, tmp_path) as gw:
        assert gw.post(CHAT.path, BODY).status_code == 200


def test_the_name_can_be_another_than_the_hosts(authority: Authority, tmp_path: Path) -> None:
    named = authority.issue("gpu1.example")
    with FakeBackend(tls=authority.server(named)) as backend:
        how = {"ca": authority.ca}
        settings: Json = {"backends": [entry(backend, tls=how)], "health": {"interval": 0.2}}
        with GatewayProcess(settings, tmp_path, ready=False) as gw:
            _until(lambda: "mismatch" in gw.admin("GET", "/backends")[0]["cause"].lower())
        how["server_name"] = "gpu1.example"
        with GatewayProcess(settings, tmp_path) as gw:
            assert gw.post(CHAT.path, BODY).status_code == 200


def test_a_backend_is_shown_a_certificate(
    authority: Authority, here: Files, tmp_path: Path
) -> None:
    own = authority.issue("gateway.example")
    with FakeBackend(tls=authority.server(here, wants_certificates=True)) as backend:
        settings = {"backends": [entry(backend)], "backend_tls": tls(own, ca=authority.ca)}
        with GatewayProcess(settings, tmp_path) as gw:
            assert gw.post(CHAT.path, BODY).status_code == 200
            shown = gw.admin("GET", "/config")["backend_tls"]
            assert shown["cert"] == own.cert


# what cannot be used


def refuses(settings: Json, directory: Path) -> str:
    """What `check-config` says of settings that are wrong."""
    file = directory / "wrong.yaml"
    file.write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "check-config", str(file)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_what_cannot_be_used_stops_the_start_and_is_named(
    authority: Authority, here: Files, tmp_path: Path
) -> None:
    other = authority.issue("other")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    wrong: list[tuple[Json, str]] = [
        ({"server": {"tls": {"cert": "/none", "key": here.key}}}, "server.tls.cert: /none"),
        ({"server": {"tls": {"cert": here.cert, "key": "/none"}}}, "server.tls.key: /none"),
        ({"server": {"tls": {"cert": here.cert, "key": other.key}}}, "server.tls: certificate"),
        ({"server": {"tls": tls(here, client_ca=str(junk))}}, "server.tls.client_ca"),
        ({"backend_tls": {"ca": "/none"}}, "backend_tls.ca: /none"),
        ({"backend_tls": {"ca": str(junk)}}, "backend_tls.ca"),
        ({"backend_tls": {"cert": here.cert}}, "backend_tls: cert and key"),
        ({"backend_tls": {"ca": here.cert, "insecure": True}}, "backend_tls: insecure"),
        ({"backends": [{"url": "https://x", "tls": {"ca": "/none"}}]}, "https://x: tls.ca: /none"),
        ({"backends": [{"url": "http://x", "tls": {}}]}, "the url is not https"),
    ]
    for settings, says in wrong:
        assert says in refuses(settings, tmp_path)


def test_plain_http_at_a_secure_listener_is_nobodys_request(
    served: tuple[GatewayProcess, FakeBackend],
) -> None:
    gw, _ = served
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{gw.port}/live", trust_env=False, timeout=10.0)
