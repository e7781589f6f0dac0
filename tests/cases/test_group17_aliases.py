"""Group 17, A09: models under other names, and backends that do not have what they list."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import ALL, CHAT, Json, Route, text

SPELLINGS = (
    b'{"model":"small","stream":false,"messages":[{"role":"user","content":"hi"}]}',
    b'{ "messages" : [{"role":"user","content":"\\"model\\": \\"small\\""}] ,'
    b'\n "model" :\t"small" }',
    b'{"metadata":{"model":"small"},"n":1.0,"seed":1e5,"model":"small","messages":[],"z":'
    b'{"model":"small"}}',
    b'{"tools":[{"function":{"parameters":{"properties":{"zebra":{},"model":{"type":"string"}}}}}],'
    b'"messages":[],"model":"small"}',
    b'{"model":"\\u0073mall","messages":[],"u":"\\u00e9 \xc3\xa9","big":18446744073709551617}',
    b'{"model":"first","messages":[],"model":"small"}',
    b'{"temperature":NaN,"messages":[],"model":"small"}',
)


@pytest.fixture
def aliased(start_backend: StartBackend, gateway: StartGateway) -> tuple[GatewayProcess, Any]:
    backends = {name: start_backend(name) for name in ("m1", "m2")}
    gw = gateway(
        [*backends.values()],
        models={"small": ["m1", "m2"], "large": ["m2"]},
        policy={"name": "round_robin"},
    )
    return gw, backends


@pytest.mark.parametrize("sent", SPELLINGS)
def test_A09_each_backend_sees_its_own_name(
    aliased: tuple[GatewayProcess, Any], sent: bytes
) -> None:
    gw, backends = aliased
    for _ in range(4):
        assert gw.post(CHAT.path, sent).status_code == 200
    spelt = b'"\\u0073mall"' if b"\\u0073mall" in sent else b'"small"'
    at = max(
        at
        for at in range(len(sent))
        if sent.startswith(spelt, at)
        and json.loads(sent[:at] + b'"found"' + sent[at + len(spelt) :]).get("model") == "found"
    )
    for name, backend in backends.items():
        expected = sent[:at] + json.dumps(name).encode() + sent[at + len(spelt) :]
        assert [request.body for request in backend.requests] == [expected] * 2


@pytest.mark.parametrize("route", ALL, ids=lambda route: route.name)
@pytest.mark.parametrize("streamed", [True, False])
def test_A09_on_every_route(
    aliased: tuple[GatewayProcess, Any], route: Route, streamed: bool
) -> None:
    gw, backends = aliased
    for _ in range(2):
        body = {**route.body(["hello"]), "model": "small"}
        if streamed and route.streams:
            body["stream"] = True
        assert gw.post(route.path, body).status_code == 200
    for name, backend in backends.items():
        assert [request.json["model"] for request in backend.requests] == [name]


def test_A09_the_answers_model_is_the_engines_own(aliased: tuple[GatewayProcess, Any]) -> None:
    gw, _ = aliased
    answer = gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": "large"})
    assert answer.json()["model"] == "m2"


def test_A09_aliases_are_listed(aliased: tuple[GatewayProcess, Any]) -> None:
    gw, _ = aliased
    listed = {entry["id"] for entry in gw.http.get("/v1/models").json()["data"]}
    assert listed == {"m1", "m2", "small", "large"}
    assert gw.http.get("/v1/models/small").status_code == 200


def test_A09_a_retry_is_renamed_again(aliased: tuple[GatewayProcess, Any]) -> None:
    gw, backends = aliased
    for first, second in (("m1", "m2"), ("m2", "m1")):
        for backend in backends.values():
            backend.reset()
        backends[first].behave(status=503)
        for _ in range(2):
            answer = gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": "small"})
            assert answer.status_code == 200
        assert {request.json["model"] for request in backends[first].requests} == {first}
        assert {request.json["model"] for request in backends[second].requests} == {second}


def test_A09_models_behind_one_alias_do_not_share_prefixes(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """What was sent by alias is found by the model's own name, and by no other's."""
    both, one = start_backend("m1", "m2"), start_backend("m2")
    gw = gateway([both, one], models={"small": ["m1", "m2"]})
    body = CHAT.body([text("A09 prefix", 4000)])

    def held(model: str) -> set[str]:
        return set(gw.explain(CHAT.path, {**body, "model": model}).blocks)

    ids = {backend: gw.backend_id(backend.url) for backend in (both, one)}
    gw.post(CHAT.path, {**body, "model": "m2"})
    [served] = [backend for backend in ids if backend.requests]
    # `both` is sent m1 for the alias, so what it holds of m2 is of no use there.
    assert held("m2") == {ids[served]}
    assert held("small") == ({ids[one]} if served is one else set())
    assert held("m1") == set()
    gw.post(CHAT.path, {**body, "model": "m1"})
    assert ids[both] in held("small")
    assert held("m1") == {ids[both]}


def test_A09_what_was_sent_by_alias_is_found_by_name(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = {name: start_backend(name) for name in ("m1", "m2")}
    gw = gateway([*backends.values()], models={"small": ["m1", "m2"]})
    for name, backend in backends.items():
        body = CHAT.body([text(f"A09 {name}", 4000)])
        [other] = [each for each in backends if each != name]
        out = gw.backend_id(backends[other].url)
        gw.admin("POST", f"/backends/{out}/drain")
        assert gw.post(CHAT.path, {**body, "model": "small"}).status_code == 200
        gw.admin("POST", f"/backends/{out}/undrain")
        assert len(backend.requests) == 1
        for asked in (name, "small"):
            blocks = gw.explain(CHAT.path, {**body, "model": asked}).blocks
            assert set(blocks) == {gw.backend_id(backend.url)}
        assert gw.explain(CHAT.path, {**body, "model": other}).blocks == {}


@pytest.mark.parametrize(
    "says",
    [
        {"error": {"message": "The model `m1` does not exist.", "type": "NotFoundError"}},
        {"error": {"message": "no", "code": "model_not_found"}},
        {"object": "error", "message": "no", "param": "model", "code": 404},
        {"error": "model 'm1' not found"},
    ],
)
def test_A09_a_backend_without_its_model_is_an_error_and_is_asked_again(
    start_backend: StartBackend, gateway: StartGateway, says: Json
) -> None:
    backend = start_backend("m1", "m2")
    gw = gateway([backend], models={"small": ["m1"]}, health={"interval": 60.0})
    backend.behave(status=404, body=json.dumps(says).encode())
    backend.models = ("m2",)
    before = gw.metrics()
    answer = gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": "small"})
    assert (answer.status_code, answer.json()) == (404, says)
    assert gw.outcomes_since(before) == {"upstream_error": 1}
    gw.settles(lambda _: gw.http.get("/v1/models/small").status_code == 404)
    assert gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": "small"}).status_code == 404
    assert len(backend.requests) == 1


def test_A09_another_backend_serves_what_the_first_has_lost(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend("m"), start_backend("m")]
    gw = gateway(backends, policy={"name": "round_robin"}, health={"interval": 60.0})
    backends[0].behave(status=404, body=b'{"error":{"message":"Model m not found"}}')
    for _ in range(2):
        assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    assert len(backends[1].requests) == 2


def test_A09_other_404s_are_the_clients(start_backend: StartBackend, gateway: StartGateway) -> None:
    backend = start_backend()
    gw = gateway([backend])
    before = gw.metrics()
    backend.next(status=404, body=b'{"error":{"message":"Response resp_9 not found"}}')
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 404
    assert gw.outcomes_since(before) == {"client_error": 1}
