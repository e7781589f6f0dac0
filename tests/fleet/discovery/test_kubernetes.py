from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError
from gateway.fleet.backend import Source
from gateway.fleet.discovery import kubernetes
from tests.fleet.discovery.api_server import FakeApiServer, endpoint
from tests.fleet.discovery.following import Following

Scene = Callable[[FakeApiServer, Following], Awaitable[None]]
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
RARELY = 3600.0


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "PAUSE", 0.02)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account's files."""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("ml")
    return tmp_path


def play(account: Path, scene: Scene, relist: float = RARELY, **options: Any) -> None:
    async def run() -> None:
        async with FakeApiServer() as server:
            server.put("vllm-1", "10.0.0.1", "10.0.0.2")
            given = {
                "service": "vllm",
                "api": server.url,
                "credentials": str(account),
                "relist": relist,
                "timeout": 0.5,
                **options,
            }
            async with Following(kubernetes=[given]) as here:
                await here.lists(A, B)
                if "watch" not in server.hangs:
                    await here.until(lambda: server.watches == 1)
                await scene(server, here)

    asyncio.run(run())


def test_what_happens_is_heard_of(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        a = here.the(A)
        assert a.source is Source.KUBERNETES
        server.put("vllm-2", "10.0.0.3")
        await here.lists(A, B, C)
        server.put("vllm-1", "10.0.0.1")
        await here.lists(A, C)
        server.delete("vllm-2")
        await here.lists(A)
        assert here.the(A) is a
        assert (server.lists, here.state.failures) == (1, 0)
        listed, watched = server.asked
        assert listed.path == "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices"
        assert listed.query["labelSelector"] == "kubernetes.io/service-name=vllm"
        assert watched.query["labelSelector"] == listed.query["labelSelector"]
        assert watched.query["resourceVersion"] == "101"
        assert {listed.token, watched.token} == {"first"}

    play(account, scene)


def test_by_selector_in_another_namespace_without_an_account(tmp_path: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        assert "/namespaces/other/" in server.asked[0].path
        assert server.asked[0].query["labelSelector"] == "app in (a,b)"
        assert server.asked[0].token == ""

    options = {"service": None, "selector": "app in (a,b)", "namespace": "other"}
    play(tmp_path, scene, **options)


def test_a_list_in_pages(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.page = 2
        for number in range(5, 10):
            server.put(f"more-{number}", f"10.0.0.{number}")
        server.loses = True
        server.history_from = server.version + 1
        server.delete("more-9")
        server.cut()
        await here.lists(A, B, *(f"10.0.0.{number}:8000" for number in range(5, 9)))

    play(account, scene)


# lost events


def test_a_removal_that_was_lost_is_made_up_for_by_the_next_list(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.put("vllm-2", "10.0.0.3")
        await here.lists(A, B, C)
        server.loses = True
        server.delete("vllm-1")
        server.loses = False
        await here.lists(C)

    play(account, scene, relist=0.4)


def test_everything_else_that_was_lost_is_too(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.loses = True
        server.put("vllm-1", "10.0.0.2")
        server.put("vllm-2", "10.0.0.3")
        await here.lists(B, C)

    play(account, scene, relist=0.4)


def test_a_watch_that_falls_silent_is_not_waited_for(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.hangs.add("watch")
        server.cut()
        await here.fails("no answer within 0.5 s")
        server.put("vllm-1", "10.0.0.1")
        await here.lists(A)

    play(account, scene)


def test_a_watch_that_is_cut_goes_on_from_where_it_was(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.put("vllm-2", "10.0.0.3")
        await here.lists(A, B, C)
        version = str(server.version)
        for _ in range(3):
            server.cut()
            await here.until(lambda: server.watches == 0)
            server.delete("vllm-1")
            await here.lists(C)
            server.put("vllm-1", "10.0.0.1", "10.0.0.2")
            await here.lists(A, B, C)
        assert server.lists == 1
        assert here.state.failures == 0
        assert server.asked[2].query["resourceVersion"] == version

    play(account, scene)


def test_events_in_another_order(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.holds = True
        server.put("vllm-1", "10.0.0.1")
        server.put("vllm-2", "10.0.0.9")
        server.put("vllm-1", "10.0.0.2")
        server.delete("vllm-2")
        server.put("vllm-3", "10.0.0.3")
        server.release()
        await here.lists(B, C)
        await asyncio.sleep(0.1)
        assert here.listed == {B, C}

    play(account, scene)


@pytest.mark.parametrize("as_event", [False, True])
def test_history_that_is_gone_is_read_anew(account: Path, as_event: bool) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.gone_as_event = as_event
        server.loses = True
        server.put("vllm-1", "10.0.0.2")
        server.put("vllm-2", "10.0.0.3")
        server.history_from = server.version
        server.cut()
        await here.lists(B, C)
        assert server.lists == 2
        assert here.state.failures == 0

    play(account, scene)


def test_bookmarks_move_the_place_to_go_on_from(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.bookmarks = server.loses = True
        server.put("vllm-2", "10.0.0.3")  # of another selection, as it were
        server.cut()
        await here.until(lambda: len(server.asked) == 3 and server.watches == 1)
        await asyncio.sleep(0.05)
        server.cut()
        await here.until(lambda: len(server.asked) == 4)
        assert server.asked[3].query["resourceVersion"] == str(server.version)

    play(account, scene)


# an API server that cannot be asked


def test_tokens_rotate(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        heard = here.heard
        server.tokens = {"second"}
        server.cut()
        await here.fails("401: the token is not accepted")
        assert "first" not in here.state.cause
        assert here.heard == heard
        server.put("vllm-1", "10.0.0.2")
        (account / "token").write_text("second")
        await here.lists(B)
        assert here.state.cause == ""

    play(account, scene)


@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
def test_an_api_server_that_refuses_changes_nothing(account: Path, status: int) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        heard = here.heard
        server.status = status
        server.cut()
        await here.fails(f"answers {status}")
        assert here.heard == heard
        server.put("vllm-1", "10.0.0.2")
        server.status = 200
        await here.lists(B)

    play(account, scene)


def test_an_api_server_that_hangs_changes_nothing(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        heard = here.heard
        server.hangs = {"list", "watch"}
        server.cut()
        await here.fails("no answer within 0.5 s")
        assert here.heard == heard
        server.put("vllm-1", "10.0.0.2")
        server.hangs.clear()
        await here.lists(B)

    play(account, scene)


def test_an_api_server_that_is_gone_changes_nothing(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        heard = here.heard
        await server.__aexit__(None, None, None)
        await here.fails("cannot be asked")
        assert here.heard == heard

    play(account, scene)


@pytest.mark.parametrize("missing", ["namespace", "everything"])
def test_what_is_not_there_is_said(tmp_path: Path, missing: str) -> None:
    async def run() -> None:
        given: dict[str, Any] = {"service": "vllm", "credentials": str(tmp_path)}
        if missing == "namespace":
            given["api"] = "http://127.0.0.1:1"
        async with Following(kubernetes=[given]) as here:
            says = {"namespace": "namespace: cannot be read", "everything": "not in a cluster"}
            await here.fails(says[missing])

    asyncio.run(run())


@pytest.fixture
def certificate(account: Path) -> ssl.SSLContext:
    """For 127.0.0.1, by the authority that the service account has."""
    key, authority = account / "key.pem", account / "ca.crt"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    what = ["-nodes", "-days", "2", "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"]
    where = ["-keyout", str(key), "-out", str(authority)]
    subprocess.run([*new, *what, *where], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority, key)
    return context


def test_tls_in_a_cluster(
    account: Path, certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with FakeApiServer(certificate) as server:
            server.put("vllm-1", "10.0.0.1")
            host, _, port = server.url.removeprefix("https://").partition(":")
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
            given = {"service": "vllm", "credentials": str(account)}
            async with Following(kubernetes=[given]) as here:
                await here.lists(A)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["another authority", "no certificate at all"])
def test_tls_with_somebody_else(account: Path, certificate: ssl.SSLContext, how: str) -> None:
    async def run() -> None:
        async with FakeApiServer(certificate) as server:
            if how == "another authority":
                (account / "ca.crt").unlink()
            else:
                (account / "ca.crt").write_text("none")
            given = {"service": "vllm", "credentials": str(account), "api": server.url}
            async with Following(kubernetes=[given]) as here:
                await here.fails("certificate" if how == "another authority" else "ca.crt")
            assert server.asked == []

    asyncio.run(run())


# coming and going


def test_one_that_flaps_stays_what_it_was(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        a = here.the(A)
        for _ in range(3):
            server.put("vllm-1", endpoint("10.0.0.1", "1", ready=False), "10.0.0.2")
            await here.lists(B)
            server.put("vllm-1", endpoint("10.0.0.1", "1"), "10.0.0.2")
            await here.lists(A, B)
        assert here.the(A) is a
        assert here.removed == []

    play(account, scene)


def test_a_pod_that_comes_again_under_another_address_or_name(account: Path) -> None:
    async def scene(server: FakeApiServer, here: Following) -> None:
        server.put("vllm-1", endpoint("10.0.0.1", "1"), endpoint("10.0.0.2", "2"))
        await here.is_read()
        a, b = here.the(A), here.the(B)
        # pod 1 has another address, and another pod has its old one
        server.put("vllm-1", endpoint("10.0.0.3", "1"), endpoint("10.0.0.1", "9"))
        await here.lists(A, C)
        assert here.removed == [a]
        assert here.the(A) is not a
        assert b.unlisted
        # slices that are cut in another way are none of the backends' business
        a = here.the(A)
        server.put("vllm-2", endpoint("10.0.0.1", "9"))
        server.put("vllm-1", endpoint("10.0.0.3", "1"))
        server.put("vllm-3", endpoint("10.0.0.3", "1"))
        server.delete("vllm-1")
        await here.is_read()
        await here.lists(A, C)
        assert here.the(A) is a

    play(account, scene, relist=0.3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give either service or selector"),
        ({"service": "a", "selector": "b"}, "give either service or selector"),
        ({"service": "A b"}, "service"),
        ({"service": "a", "port": 0}, "port"),
        ({"service": "a", "port": ""}, "port"),
        ({"service": "a", "api": "ftp://x"}, "api must be http://"),
        ({"service": "a", "api": "https://u:secret@x"}, "api must be http://"),
        ({"service": "a", "api": "https://[::1"}, r"api: 'https://\[::1' is not a URL"),
        ({"service": "a", "api": "https://x:port"}, "api"),
        ({"service": "a", "relist": 0}, "relist"),
        ({"service": "a", "namespace": "../x"}, "namespace"),
        ({"service": "a", "backend": {"role": "boss"}}, "role.*one of"),
        ({"service": "a", "backend": {"models": [""]}}, "models"),
        ({"service": "a", "labels": {}}, "unknown field `labels`"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Following(kubernetes=[options])
