"""Group 15: who may do what, and what nobody may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.secrets import hash_key
from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import ALL, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Json, Route

BODY = CHAT.body(["hello"])
KEY, OTHER = "pg-a-key-that-nobody-can-guess", "pg-another-key-that-nobody-can-guess"
BEARER = {"authorization": f"Bearer {KEY}"}


def key(name: str = "team", key: str = KEY, **options: Any) -> Json:
    return {"name": name, "hash": hash_key(key), **options}


def auth(*keys: Json, **options: Any) -> Json:
    return {"enabled": True, "keys": list(keys) or [key()], **options}


@pytest.fixture(scope="module")
def plain(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway([shared_backend])


@pytest.fixture(scope="module")
def guarded(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway(
        [shared_backend], auth=auth(), scheduling={"tenants": {"header": "x-team"}}
    )


@pytest.fixture(scope="module")
def allowing(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway([shared_backend], admin={"allow_backends": ["10.0.0.5:8000"]})


# V01

TRAP_HEADERS = (
    *("x-prefiller-url", "x-prefiller-host-port", "x-gateway-destination-endpoint"),
    *("x-data-parallel-rank", "X-Data-Parallel-Rank", "x-data-parallel-host-port"),
    *("x-vllm-priority", "x-override-bootstrap-host", "x-dynamo-worker-instance-id"),
    *("x-kv-cache-source-host-port", "x-encoder-hosts-ports", "x-smg-routing-key"),
)


def test_V01_no_header_chooses_a_target(
    plain: GatewayProcess, backend: FakeBackend, start_backend: StartBackend
) -> None:
    trap = start_backend()
    target = f"127.0.0.1:{trap.port}"
    for route in (*ALL, Route("unknown", "/v1/unknown", CHAT.body, streams=False)):
        headers = dict.fromkeys(TRAP_HEADERS, target) | {"x-prefiller-url": f"http://{target}"}
        assert plain.http.post(route.path, json=route.body(["x"]), headers=headers).is_success
        names = {name.lower().decode() for name, _ in backend.requests[-1].headers}
        assert names.isdisjoint(name.lower() for name in TRAP_HEADERS)
    assert trap.connection_count == 0


def test_V01_not_even_when_there_is_no_target_of_our_own(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    trap = start_backend()
    gw = gateway([])
    headers = {"x-gateway-destination-endpoint": f"127.0.0.1:{trap.port}"}
    assert gw.http.post(CHAT.path, json=BODY, headers=headers).status_code == 503
    assert trap.connection_count == 0


TRANSFERS: list[Json] = [
    {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1"}},
    {"ec_transfer_params": {"x": 1}},
    {"bootstrap_host": "10.0.0.1"},
    {"bootstrap_host": ["10.0.0.1"], "bootstrap_port": [1], "bootstrap_room": [2]},
    {"bootstrap_room": 0},
    {"disaggregated_params": {"request_type": "generation_only"}},
    {"data_parallel_rank": 0},
    {"routed_dp_rank": 1},
    {"disagg_prefill_dp_rank": 1},
    {"vllm_xargs": {"kv_transfer_params": {"remote_host": "10.0.0.1"}}},
    {"sampling_params": {"extra_args": {"kv_transfer_params": {"remote_host": "10.0.0.1"}}}},
    {"parameters": {"bootstrap_host": "10.0.0.1", "bootstrap_port": 1, "bootstrap_room": 2}},
]
SERVED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


@pytest.mark.parametrize("members", TRANSFERS, ids=lambda members: next(iter(members)))
def test_V01_no_body_tells_an_engine_where_to_connect(
    plain: GatewayProcess, backend: FakeBackend, members: Json
) -> None:
    for route in SERVED:
        answer = plain.post(route.path, route.body(["x"]) | members)
        assert answer.status_code == 400
        assert next(iter(members)) in answer.json()["error"]["message"]
    for path in ("/generate", "/inference/v1/generate", "/v1/unknown"):
        assert plain.post(path, {"text": "x"} | members).status_code == 400
        # In every encoding that an engine may understand.
        for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
            for space in ("", " "):
                body = (space + json.dumps({"text": "x"} | members)).encode(encoding)
                assert plain.post(path, body).status_code == 400, encoding
        lying = "multipart/form-data; boundary=x"
        answer = plain.post(path, {"text": "x"} | members, content_type=lying)
        assert answer.status_code in (400, 415)  # routes that are known take JSON alone
        hidden = json.dumps(members).replace("_", "\\u005f").encode()
        assert plain.post(path, hidden).status_code == 400
        nan = json.dumps({"temperature": float("nan")} | members).encode()
        assert plain.post(path, nan).status_code == 400
    assert backend.requests == []


def test_V01_null_and_what_only_looks_alike_pass_byte_by_byte(
    plain: GatewayProcess, backend: FakeBackend
) -> None:
    body = json.dumps(
        BODY
        | {"kv_transfer_params": None, "vllm_xargs": {"x": 1}, "metadata": {"bootstrap_host": "x"}},
        indent=3,
    ).encode()
    assert plain.post(CHAT.path, body).status_code == 200
    assert backend.requests[-1].body == body


@pytest.mark.parametrize(
    "path",
    [
        *("/sleep", "//sleep", "/%73leep", "/sleep/", "/sleep?level=2", "/v1/../sleep", "/SLEEP"),
        *("/wake_up", "/flush_cache", "/reset_prefix_cache", "/collective_rpc", "/abort_requests"),
        *("/v1/load_lora_adapter", "/start_profile", "/update_weights_from_disk", "/server_info"),
        *("/scale_elastic_ep", "/slots/0?action=erase", "/inference/v1/abort_requests"),
        *("/%2e/sleep", "/%2573leep", "/./sleep", "/v1//load_lora_adapter"),
    ],
)
def test_V01_engines_are_not_steered_by_clients(
    plain: GatewayProcess, backend: FakeBackend, path: str
) -> None:
    probes = len(backend.probes)
    for method in ("GET", "POST"):
        with plain.client() as client:
            client.send(
                f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}".encode()
            )
            answer = client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (403, "path_not_allowed")
    assert backend.requests == []
    pages = {probe.path for probe in backend.probes[probes:]}
    assert pages <= {"/health", "/v1/models", "/metrics"}


# V02


@pytest.mark.parametrize(
    "url",
    [
        *("http://10.0.0.5:9090", "http://10.0.0.5", "http://10.0.0.5.evil:8000"),
        *("http://[::ffff:10.0.0.5]:8000", "http://10.0.0.5:8000@evil.example/"),
        *("http://evil@10.0.0.5:8000", "http://169.254.169.254:8000", "http://evil.example:8000"),
        *("http://127.0.0.1:8000", "http://0x0a000005:8000", "http://167772165:8000"),
    ],
)
def test_V02_backends_are_where_they_may_be(allowing: GatewayProcess, url: str) -> None:
    answer = allowing.http.post("/admin/v1/backends", json={"url": url})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "url"
    assert len(allowing.admin("GET", "/backends")) == 1


def test_V02_what_is_listed_may_be_added(allowing: GatewayProcess) -> None:
    added = allowing.admin("POST", "/backends", {"url": "http://10.0.0.5:8000"})
    allowing.admin("DELETE", f"/backends/{added['id']}")


def test_V02_a_name_is_judged_by_what_it_resolves_to(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    port = backend.port
    gw = gateway([], admin={"allow_backends": [f"localhost:{port}", "169.254.0.0/17:1"]})
    added = gw.admin("POST", "/backends", {"url": f"http://localhost:{port}"})
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1)
    assert gw.post(CHAT.path, BODY).status_code == 200
    assert added["source"] == "admin"
    host = backend.requests[0].header(b"host")
    assert host == f"localhost:{port}".encode()


def test_V02_no_metadata_address_without_any_rule(gateway: StartGateway) -> None:
    gw = gateway([])
    for host in ("169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal", "0.0.0.0"):
        answer = gw.http.post("/admin/v1/backends", json={"url": f"http://{host}"})
        assert answer.status_code == 400, host
    assert gw.admin("GET", "/backends") == []


def test_V02_nothing_of_this_machine_is_sent_to_an_added_backend(gateway: StartGateway) -> None:
    gw = gateway([])
    for members in (
        {"api_key": {"file": "/etc/hostname"}},
        {"api_key": {"env": "HOME"}},
        {"tls": {"cert": "/etc/hostname", "key": "/etc/hostname"}},
    ):
        entry = {"url": "https://10.0.0.1"} | members
        assert gw.http.post("/admin/v1/backends", json=entry).status_code == 400
    assert gw.admin("GET", "/backends") == []


# V04

UNGUARDED = (
    *("/v1/chat/completions", "//v1/chat/completions", "/V1/chat/completions"),
    *("/v1/../v1/chat/completions", "/v1/./chat/completions", "/v1/chat/completions/"),
    *("/%761/chat/completions", "/v1%2fchat/completions", "/v1/chat/completions?x=/live"),
    *("/tokenize", "/detokenize", "/invocations", "/pooling", "/score", "/rerank", "/generate"),
    *("/ping", "/version", "/load", "/v1/models", "/v1/models/m", "/metrics", "/", "/unknown"),
    *("/live/", "//live", "/live/../v1/models", "/LIVE", "/ready/x", "/health%2f..", "/docs"),
    *("/openapi.json", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses/r-1"),
    *("*", "http://x/v1/models", "/sleep"),
)


@pytest.mark.parametrize("path", UNGUARDED)
def test_V04_no_path_answers_without_a_key(
    guarded: GatewayProcess, backend: FakeBackend, path: str
) -> None:
    for method in ("GET", "POST", "OPTIONS", "PUT"):
        for shown in ("", "authorization: Bearer nobody\r\n", "authorization: Basic eDp5\r\n"):
            with guarded.client() as client:
                head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{shown}content-length: 2\r\n\r\n"
                client.send(head.encode() + b"{}")
                assert client.answer().status in (400, 401)
    assert backend.requests == []
    assert {probe.path for probe in backend.probes} <= {"/health", "/v1/models", "/metrics"}


@pytest.mark.parametrize("path", ["/live", "/ready", "/health"])
def test_V04_liveness_and_readiness_need_none(guarded: GatewayProcess, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


def test_V04_metrics_are_open_where_that_is_said(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    gw = gateway([start_backend()], auth=auth(open_metrics=True))
    assert gw.post(CHAT.path, BODY).status_code == 401
    page = gw.metrics()
    assert page.by("prefixgate_auth_failures_total", "reason") == {"missing": 1}


@pytest.mark.parametrize(
    "shown",
    [BEARER, {"x-api-key": KEY}, {"api-key": KEY}, {"authorization": f"bearer {KEY}"}],
    ids=["bearer", "x-api-key", "api-key", "any case"],
)
def test_V04_a_key_opens_every_path(guarded: GatewayProcess, shown: dict[str, str]) -> None:
    for route in ALL:
        answer = guarded.http.post(route.path, json=route.body(["x"]), headers=shown)
        assert answer.status_code == 200
    for page in ("/v1/models", "/v1/models/m", "/metrics"):
        assert guarded.http.get(page, headers=shown).status_code == 200


def test_V04_refusals_are_in_the_callers_dialect(guarded: GatewayProcess) -> None:
    openai = guarded.post(CHAT.path, BODY)
    assert openai.json()["error"]["code"] == "missing_api_key"
    assert openai.headers["www-authenticate"].startswith("Bearer")
    anthropic = guarded.post(MESSAGES.path, MESSAGES.body(["x"]), x_api_key="nobody")
    assert anthropic.json()["error"]["type"] == "authentication_error"
    assert anthropic.json()["type"] == "error"
    assert guarded.http.get("/v1/models").json()["error"]["code"] == "missing_api_key"


def test_V04_a_key_is_for_its_models(start_backend: StartBackend, gateway: StartGateway) -> None:
    one, two = start_backend("m-1"), start_backend("other")
    gw = gateway([one, two], auth=auth(key(models=["m-*"]), key("all", OTHER)))
    listed = gw.http.get("/v1/models", headers=BEARER).json()["data"]
    assert [model["id"] for model in listed] == ["m-1"]
    assert gw.http.get("/v1/models/other", headers=BEARER).status_code == 404

    def ask(model: str | None, key: str, path: str = CHAT.path) -> httpx.Response:
        body = {"messages": []} | ({} if model is None else {"model": model})
        return gw.post(path, body, x_api_key=key)

    assert ask("m-1", KEY).status_code == 200
    refused, unknown = ask("other", KEY), ask("nobody", KEY)
    assert (refused.status_code, unknown.status_code) == (404, 404)
    # Nothing tells the two apart.
    told = refused.json()["error"]["message"].replace("other", "nobody")
    assert told == unknown.json()["error"]["message"]
    # Nor is a path without a model a way around it.
    assert ask(None, KEY, "/generate").status_code == 404
    assert ask(None, OTHER, "/generate").status_code == 200
    assert two.requests == [] or two.requests[-1].path == "/generate"


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ({"lora_path": "mine"}, 200),
        ({"lora_path": ["mine", None, ""]}, 200),
        ({"lora_path": "suffix"}, 200),
        ({"lora_path": "another"}, 404),
        ({"lora_path": ["mine", "another"]}, 404),
        ({"adapter_id": "another"}, 404),
        ({"lora": [{"id": 0, "scale": 1.0}]}, 404),
        ({"lora_request": {"lora_name": "another"}}, 404),
    ],
)
def test_V04_a_key_is_for_its_adapters(
    start_backend: StartBackend, gateway: StartGateway, extra: Json, status: int
) -> None:
    models = ["m", "mine", "m:suffix"]
    gw = gateway([start_backend()], auth=auth(key(models=models), key("all", OTHER)))
    body = BODY | extra
    assert gw.post(CHAT.path, body, x_api_key=KEY).status_code == status
    assert gw.post(CHAT.path, body, x_api_key=OTHER).status_code == 200


# V05


def test_V05_the_clients_credentials_stop_here(
    guarded: GatewayProcess, backend: FakeBackend
) -> None:
    shown = BEARER | {"x-api-key": "user", "api-key": "user", "cookie": "session=user"}
    assert guarded.http.post(CHAT.path, json=BODY, headers=shown).status_code == 200
    [request] = backend.requests
    for name in (b"authorization", b"x-api-key", b"api-key", b"cookie"):
        assert request.header(name) is None


@pytest.mark.parametrize("keys", [True, False], ids=["with API keys", "without"])
def test_V05_a_backend_sees_its_own_key_only(
    start_backend: StartBackend, tmp_path: Path, keys: bool
) -> None:
    backend, secret = start_backend(), "the-backends-own"
    file = tmp_path / "key"
    file.write_text(secret)
    entries = [{"url": backend.url, "api_key": {"file": str(file)}}]
    log = tmp_path / "access.jsonl"
    decisions = tmp_path / "decisions.jsonl"
    settings: Json = {
        "backends": entries,
        "auth": auth(pass_credentials=True) if keys else {},
        "log": {"level": "debug", "access": str(log), "decisions": str(decisions)},
    }
    with GatewayProcess(settings, tmp_path) as gw:
        shown = BEARER | {"x-api-key": "user", "cookie": "session=user"}
        assert gw.http.post(CHAT.path, json=BODY, headers=shown).status_code == 200
        backend.next(status=500)
        gw.http.post(CHAT.path, json=BODY, headers=shown)
        seen = [gw.http.get(f"/admin/v1/{page}").text for page in ("config", "backends", "keys")]
    for request in (*backend.requests, *backend.probes):
        given = [value for name, value in request.headers if name.lower() == b"authorization"]
        assert given == [f"Bearer {secret}".encode()]
        assert request.header(b"x-api-key") is None
        assert request.header(b"cookie") is None
    text = f"{seen} {gw.log} {log.read_text()} {decisions.read_text()}"
    for never in (secret, KEY, hash_key(KEY), hash_key(KEY).removeprefix("sha256:")):
        assert never not in text
    if keys:
        assert json.loads(log.read_text().splitlines()[0])["key"] == "team"


def test_V05_without_one_credentials_pass_only_where_that_is_said(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], auth=auth(pass_credentials=True))
    assert gw.http.post(CHAT.path, json=BODY, headers=BEARER).status_code == 200
    assert backend.requests[0].header(b"authorization") == BEARER["authorization"].encode()
    open_gw = gateway([backend])
    assert open_gw.http.post(CHAT.path, json=BODY, headers=BEARER).status_code == 200
    assert backend.requests[1].header(b"authorization") == BEARER["authorization"].encode()


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"admin": {"token": {"env": "PREFIXGATE_NOT_THERE"}}}, "admin.token"),
        ({"backends": [{"url": "http://x", "api_key": {"file": "/none"}}]}, "api_key"),
        ({"auth": auth({"name": "a", "key": {"env": "PREFIXGATE_NOT_THERE"}})}, "auth.keys[0].key"),
        (
            {"admin": {"users": [{"name": "a", "role": "read", "token": {"file": "/none"}}]}},
            "users[0]",
        ),
    ],
)
def test_V05_a_secret_that_is_missing_stops_the_start_by_name(
    tmp_path: Path, settings: Json, option: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        GatewayProcess(settings, tmp_path, ready=False)
    assert option in str(caught.value)


# V07


def test_V07_identity_headers_are_not_believed(
    guarded: GatewayProcess, backend: FakeBackend
) -> None:
    claims = {
        "x-team": "somebody-else",
        "x-prefixgate-priority": "high",
        "x-prefixgate-tenant": "somebody-else",
        "x-prefixgate-key": "somebody-else",
        "x-prefixgate-backend": "b",
        "x-vllm-priority": "-100",
    }
    assert guarded.http.post(CHAT.path, json=BODY, headers=BEARER | claims).status_code == 200
    [request] = backend.requests
    names = [name.lower() for name, _ in request.headers]
    assert [name for name in names if name.startswith((b"x-prefixgate-", b"x-vllm-"))] == []
    # The verified value replaces the claim.
    assert names.count(b"x-team") == 1
    assert request.header(b"x-team") == b"team"


def test_V07_a_priority_is_what_the_key_may_have(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    log = tmp_path / "access.jsonl"
    keys = auth(key(), key("urgent", OTHER, max_priority="high"))
    gw = gateway([start_backend()], auth=keys, log={"access": str(log)})

    def ask(key: str, body: Json = BODY, **headers: str) -> int:
        return gw.post(CHAT.path, body, x_api_key=key, **headers).status_code

    for asked in ("high", "normal", "low"):
        for each in (KEY, OTHER):
            assert ask(each, x_prefixgate_priority=asked) == 200
    # The body's own goes on as it is, so it is refused rather than ranked lower.
    assert ask(KEY, BODY | {"priority": -5}) == 403
    for lax in (-5.0, "-5", " -5.0 "):
        assert ask(KEY, BODY | {"priority": lax}) == 403
    for path in ("/generate", "/v1/embeddings", "/v1/messages"):
        body = {"model": "m", "input": "x", "messages": [], "max_tokens": 1, "priority": -5}
        assert gw.post(path, body, x_api_key=KEY).status_code == 403
    assert ask(KEY, BODY | {"priority": 5}) == 200
    assert ask(OTHER, BODY | {"priority": -5}) == 200
    gw.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    ranked = [(line["key"], line["priority"]) for line in lines if line["status"] == 200]
    assert ranked == [
        *(("team", "normal"), ("urgent", "high")),
        *(("team", "normal"), ("urgent", "normal")),
        *(("team", "low"), ("urgent", "low")),
        *(("team", "low"), ("urgent", "high")),
    ]


def test_V07_a_trusted_peer_is_believed(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    log, backend = tmp_path / "access.jsonl", start_backend()
    gw = gateway(
        [backend],
        auth=auth(),
        server={"trusted_proxies": ["127.0.0.0/8"]},
        scheduling={"tenants": {"header": "x-team"}},
        log={"access": str(log)},
    )
    claims = {"x-team": "search", "x-prefixgate-priority": "high"}
    assert gw.http.post(CHAT.path, json=BODY, headers=BEARER | claims).status_code == 200
    assert backend.requests[0].header(b"x-team") == b"search"
    gw.stop()
    [line] = [json.loads(line) for line in log.read_text().splitlines()]
    assert line["priority"] == "high"
