"""Anthropic's own Python SDK against the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.harness.behaviour import Cut
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess

ASK: Any = [{"role": "user", "content": "hello"}]
TEXT = "t0 t1 t2 t3 t4 "


@pytest.fixture
def client(gw: GatewayProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=gw.url, api_key="none", max_retries=0) as made:
        yield made


def test_messages(client: Anthropic, backend: FakeBackend) -> None:
    answer = client.messages.create(model="m", max_tokens=9, system="be brief", messages=ASK)
    assert answer.content[0].type == "text"
    assert answer.content[0].text == TEXT
    assert answer.usage.output_tokens == 5
    [request] = backend.requests
    assert request.json["system"] == "be brief"
    assert request.header(b"anthropic-version")


def test_messages_stream(client: Anthropic, backend: FakeBackend) -> None:
    with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
        assert "".join(stream.text_stream) == TEXT
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 5


def test_raw_events_arrive_while_they_are_made(client: Anthropic, backend: FakeBackend) -> None:
    backend.behave(silent_after=4)
    stream: Any = client.messages.create(model="m", max_tokens=9, messages=ASK, stream=True)
    kinds = [next(iter(stream)).type for _ in range(4)]
    assert kinds == ["message_start", "content_block_start", *["content_block_delta"] * 2]
    stream.close()
    backend.wait_closed(backend.requests[0])


def test_tool_use_stream(client: Anthropic, backend: FakeBackend) -> None:
    arguments = {"query": "y" * 280}
    backend.behave(tool_arguments=tuple(json.dumps(arguments)), segment=50)
    tools: Any = [{"name": "lookup", "input_schema": {"type": "object", "properties": {}}}]
    with client.messages.stream(model="m", max_tokens=9, messages=ASK, tools=tools) as stream:
        final = stream.get_final_message()
    assert final.content[0].type == "tool_use"
    assert final.content[0].input == arguments


def test_unknown_model(client: Anthropic, backend: FakeBackend) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nothing", max_tokens=9, messages=ASK)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert backend.requests == []


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (529, anthropic.InternalServerError),
    ],
)
def test_the_backends_errors(
    client: Anthropic,
    backend: FakeBackend,
    status: int,
    error: type[anthropic.APIStatusError],
    streaming: bool,
) -> None:
    backend.behave(status=status)
    with pytest.raises(error) as caught:
        client.messages.create(model="m", max_tokens=9, messages=ASK, stream=streaming)
    assert f"fake backend says {status}" in caught.value.message


def test_a_stream_that_breaks_off_raises(client: Anthropic, backend: FakeBackend) -> None:
    backend.behave(cut_after=4, itl=0.01)
    stream: Any = client.messages.create(model="m", max_tokens=9, messages=ASK, stream=True)
    with pytest.raises(anthropic.APIError):
        list(stream)


def test_no_answer_is_a_server_error(client: Anthropic, backend: FakeBackend) -> None:
    backend.behave(script=(Cut.FIN,))
    with pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(model="m", max_tokens=9, messages=ASK)
    assert caught.value.status_code == 502
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["type"] == "error"


def test_async_client(gw: GatewayProcess, backend: FakeBackend) -> None:
    async def ask() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=gw.url, api_key="none") as made,
            made.messages.stream(model="m", max_tokens=9, messages=ASK) as stream,
        ):
            return "".join([part async for part in stream.text_stream])

    assert asyncio.run(ask()) == TEXT


def test_aliases(client: Anthropic, backend: FakeBackend) -> None:
    answer = client.messages.create(model="small", max_tokens=64, messages=ASK)
    assert answer.model == "m"
    assert backend.requests[0].json["model"] == "m"


def test_count_tokens(client: Anthropic, backend: FakeBackend) -> None:
    backend.next(body=b'{"input_tokens":12}')
    assert client.messages.count_tokens(model="m", messages=ASK).input_tokens == 12
    assert backend.requests[0].path == "/v1/messages/count_tokens"
