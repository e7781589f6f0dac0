from __future__ import annotations

import json

import pytest

from gateway.config import BackendConfig, BreakerConfig
from gateway.fleet.backend import Backend, Source
from gateway.fleet.facts import EngineFacts
from gateway.http.client import AsgiClient
from gateway.http.context import RequestContext
from gateway.http.dialects.registry import dialect_for
from gateway.http.engine_priority import with_priority
from gateway.http.facts import Facts
from gateway.telemetry.record import RequestRecord
from gateway.types import EngineKind, Priority
from policies.base import RouteRequest

CHAT = "/v1/chat/completions"


def sent(
    body: bytes,
    priority: Priority | None,
    kind: EngineKind | None = EngineKind.VLLM,
    *,
    schedules: bool = True,
    path: str = CHAT,
    flipped: bool = False,
) -> bytes:
    """What a backend of that kind gets."""
    dialect = dialect_for("POST", path)
    facts = Facts(dialect.parse(body, ""), RouteRequest("m"), priority)

    async def nowhere(*_: object) -> None:
        """Nothing is received or sent."""

    client = AsgiClient(nowhere, nowhere)
    context = RequestContext({}, client, dialect, RequestRecord("1", dialect.name))
    context.body, context.facts = body, facts
    config = BackendConfig(url="http://gpu1", kind=kind, priority=schedules)
    backend = Backend(config, Source.CONFIG, lambda: 0.0, BreakerConfig())
    if kind is not None:
        backend.facts = EngineFacts(kind, "/health", ("m",), flipped=flipped)
    return with_priority(context, context.body, backend)


@pytest.mark.parametrize(
    ("kind", "priority", "value"),
    [
        (EngineKind.VLLM, Priority.HIGH, -1),
        (EngineKind.VLLM, Priority.LOW, 1),
        (EngineKind.SGLANG, Priority.HIGH, 1),
        (EngineKind.SGLANG, Priority.LOW, -1),
    ],
)
def test_each_engine_gets_it_in_its_own_direction(
    kind: EngineKind, priority: Priority, value: int
) -> None:
    body = sent(b'{"model":"m","messages":[]}', priority, kind)
    assert body == b'{"priority":%d,"model":"m","messages":[]}' % value


def test_an_engine_that_was_started_the_other_way_round() -> None:
    body = sent(b'{"model":"m","messages":[]}', Priority.HIGH, EngineKind.SGLANG, flipped=True)
    assert body == b'{"priority":-1,"model":"m","messages":[]}'


def test_nothing_else_of_the_body_changes() -> None:
    body = ' \n{ "model" : "m", "messages": [], "t":1.0,"n":1e5, "x":"\\u00e9é" }\n'.encode()
    edited = sent(body, Priority.LOW)
    assert edited.replace(b'"priority":1,', b"") == body
    assert json.loads(edited)["priority"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"schedules": False},
        {"kind": EngineKind.LLAMACPP},
        {"kind": None},
        {"priority": Priority.NORMAL},
        {"priority": None},
        {"path": "/v1/embeddings"},
        {"path": "/v1/unknown"},
        {"body": b'{"model":"m","priority":7}'},
        {"body": '{"model":"m"}'.encode("utf-16-le")},
    ],
    ids=str,
)
def test_the_body_is_the_clients_otherwise(options: dict[str, object]) -> None:
    asked = {"body": b'{"model":"m"}', "priority": Priority.HIGH} | options
    assert sent(**asked) == asked["body"]
