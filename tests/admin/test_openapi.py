"""The document against the specification, against the routes, and against real answers."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from openapi_spec_validator import validate
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from gateway.admin.api import admin_app
from gateway.admin.auth import Auth
from gateway.admin.operations import AdminApi
from gateway.config import Admin
from tests.admin.client import Client
from tests.admin.control import FakeControl

Json = dict[str, Any]

URI = "urn:admin"


@pytest.fixture(scope="module")
def document() -> Json:
    found: Json = Client(FakeControl()).ask("GET", "/openapi.json").json()
    return found


def operations(document: Json) -> dict[tuple[str, str], Json]:
    return {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def check(document: Json, schema: Json, value: Any) -> None:
    """Raises:
    ValidationError: the value is not as the schema says.
    """
    resource = DRAFT202012.create_resource(document)
    registry: Registry[Any] = Registry().with_resource(URI, resource)
    Draft202012Validator(_absolute(schema), registry=registry).validate(value)


def _absolute(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: URI + value if key == "$ref" else _absolute(value) for key, value in schema.items()
        }
    return [_absolute(item) for item in schema] if isinstance(schema, list) else schema


def schema_of(document: Json, method: str, path: str, status: int) -> Json | None:
    answer = operations(document)[method, path]["responses"][str(status)]
    if "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    content = answer.get("content")
    found: Json | None = content["application/json"]["schema"] if content else None
    return found


def test_it_is_openapi(document: Json) -> None:
    assert document["openapi"].startswith("3.1")
    validate(document)


def test_every_route_is_in_it_and_nothing_else(document: Json) -> None:
    app: Any = admin_app(FakeControl(), Admin())
    assert isinstance(app, Auth)
    served = {
        (method, route.path) for route in app._app.routes for method in route.methods - {"HEAD"}
    }
    assert served == set(operations(document))


def test_ids_differ_and_parameters_are_described(document: Json) -> None:
    ids = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(ids)) == len(ids)
    for (_, path), operation in operations(document).items():
        names = [parameter["name"] for parameter in operation.get("parameters", [])]
        assert names == [name for name in ("id", "name") if f"{{{name}}}" in path]


def test_components_are_all_used(document: Json) -> None:
    text = str(document)
    for name in document["components"]["schemas"]:
        assert f"'#/components/schemas/{name}'" in text


CALLS: list[tuple[str, str, Any, int]] = [
    ("GET", "/v1/backends", None, 200),
    ("POST", "/v1/backends", {"url": "http://gpu2:1"}, 201),
    ("POST", "/v1/backends", {"url": "http://gpu1:8000"}, 200),
    ("POST", "/v1/backends", {"url": "gpu1"}, 400),
    ("GET", "/v1/backends/{id}", None, 200),
    ("PATCH", "/v1/backends/{id}", {"models": ["x"], "capacity_tokens": None}, 200),
    ("PATCH", "/v1/backends/{id}", {"models": []}, 400),
    ("POST", "/v1/backends/{id}/drain", None, 200),
    ("POST", "/v1/backends/{id}/drain", None, 202),
    ("POST", "/v1/backends/{id}/undrain", None, 200),
    ("DELETE", "/v1/backends/{id}", None, 204),
    ("GET", "/v1/discovery", None, 200),
    ("GET", "/v1/keys", None, 200),
    ("POST", "/v1/keys", {"name": "made", "limits": {"max_concurrent": 1}}, 201),
    ("POST", "/v1/keys", {"name": "team"}, 400),
    ("PATCH", "/v1/keys/{name}", {"models": ["m"], "limits": {"max_concurrent": None}}, 200),
    ("PATCH", "/v1/keys/{name}", {"name": "other"}, 400),
    ("PATCH", "/v1/keys/{name}", {}, 404),
    ("DELETE", "/v1/keys/{name}", None, 204),
    ("DELETE", "/v1/keys/{name}", None, 400),
    ("DELETE", "/v1/keys/{name}", None, 404),
    ("GET", "/v1/overrides", None, 200),
    ("DELETE", "/v1/overrides/policy", None, 200),
    ("DELETE", "/v1/overrides/scheduling", None, 200),
    ("DELETE", "/v1/overrides/backends", None, 200),
    ("DELETE", "/v1/overrides/keys", None, 200),
    ("GET", "/v1/policies", None, 200),
    ("GET", "/v1/policy", None, 200),
    ("PUT", "/v1/policy", {"name": "round_robin", "params": {}}, 200),
    ("PUT", "/v1/policy", {"name": "chance"}, 400),
    ("GET", "/v1/scheduling", None, 200),
    ("PATCH", "/v1/scheduling", {"gate": None, "target": {"seconds": 1.0}}, 200),
    ("PATCH", "/v1/scheduling", {"order": "whim"}, 400),
    ("POST", "/v1/explain", {"path": "/v1/completions", "body": {"model": "m"}}, 200),
    ("POST", "/v1/explain", {"path": 1}, 400),
    ("GET", "/v1/index", None, 200),
    ("POST", "/v1/index/flush", {"model": "m"}, 200),
    ("POST", "/v1/index/flush", {"backend": "nope"}, 404),
    ("GET", "/v1/queues", None, 200),
    ("GET", "/v1/disagg", None, 200),
    ("GET", "/v1/requests", None, 200),
    ("GET", "/v1/config", None, 200),
    ("POST", "/v1/config/reload", None, 200),
    ("GET", "/openapi.json", None, 200),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), CALLS)
def test_answers_are_as_described(
    document: Json, method: str, path: str, body: Any, status: int
) -> None:
    control = FakeControl()
    control.load(control.first).in_flight = 1 if status == 202 else 0
    name = {400: "team", 404: "nobody"}.get(status, "made")
    place = path.replace("{id}", control.first).replace("{name}", name)
    answer = Client(control).ask(method, place, json=body)
    assert answer.status_code == status
    schema = schema_of(document, method, path, status)
    if schema is None:
        assert answer.content == b""
    else:
        check(document, schema, answer.json())
    described = operations(document)[method, path].get("requestBody")
    if described is not None and status < 400:
        check(document, described["content"]["application/json"]["schema"], body)


def test_every_good_answer_is_tried(document: Json) -> None:
    tried = {(method, path, status) for method, path, _, status in CALLS}
    described = {
        (method, path, int(status))
        for (method, path), operation in operations(document).items()
        for status in operation["responses"]
        if int(status) < 400
    }
    assert described - tried == set()


def test_errors_of_every_operation_are_described(document: Json) -> None:
    control = FakeControl()
    refused = Client(control, peer=("10.0.0.9", 1))
    unknown = Client(control, "s3cret")
    for operation in AdminApi(control).operations():
        for client, status in ((refused, 403), (unknown, 401)):
            answer = client.ask(
                operation.method, operation.path.replace("{id}", "a").replace("{name}", "a")
            )
            assert answer.status_code == status
            schema = schema_of(document, operation.method, operation.path, status)
            assert schema is not None
            check(document, schema, answer.json())


def test_the_check_itself_can_fail(document: Json) -> None:
    schema = schema_of(document, "GET", "/v1/backends", 200)
    assert schema is not None
    with pytest.raises(ValidationError, match="required property"):
        check(document, schema, [{"id": "x"}])
