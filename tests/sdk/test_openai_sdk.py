"""OpenAI's own Python SDK against the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.harness.behaviour import Cut
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess

ASK: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}},
    }
]
TEXT = "t0 t1 t2 t3 t4 "


@pytest.fixture
def client(gw: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gw.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat(client: OpenAI, backend: FakeBackend) -> None:
    answer = client.chat.completions.create(model="m", messages=ASK)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_chat_stream(client: OpenAI, backend: FakeBackend) -> None:
    stream: Any = client.chat.completions.create(
        model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert backend.requests[0].json["stream_options"] == {"include_usage": True}


def test_chat_stream_arrives_while_it_is_made(client: OpenAI, backend: FakeBackend) -> None:
    backend.behave(silent_after=3)
    stream: Any = client.chat.completions.create(model="m", messages=ASK, stream=True)
    got = [next(stream).choices[0].delta.content for _ in range(3)]
    assert got == ["", "t0 ", "t1 "]
    stream.close()
    backend.wait_closed(backend.requests[0])


def test_tool_calls(client: OpenAI, backend: FakeBackend) -> None:
    arguments = json.dumps({"query": "x" * 280})
    backend.behave(tool_arguments=tuple(arguments), segment=50)
    stream: Any = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, stream=True)
    pieces = [
        call.function.arguments or ""
        for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
        if call.function is not None
    ]
    assert len(pieces) > 290
    assert "".join(pieces) == arguments
    whole = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    [call] = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.arguments == arguments
    assert backend.requests[0].json["tools"] == TOOLS


def test_completions(client: OpenAI, backend: FakeBackend) -> None:
    answer = client.completions.create(model="m", prompt="hello")
    assert answer.choices[0].text == TEXT
    by_ids = client.completions.create(model="m", prompt=[1, 2, 3])
    assert by_ids.choices[0].text == TEXT
    stream: Any = client.completions.create(model="m", prompt="hello", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == TEXT


def test_responses(client: OpenAI, backend: FakeBackend) -> None:
    answer = client.responses.create(model="m", input="hello")
    assert answer.output_text == TEXT
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5


def test_responses_stream(client: OpenAI, backend: FakeBackend) -> None:
    with client.responses.stream(model="m", input="hello") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == TEXT


def test_stored_responses(client: OpenAI, backend: FakeBackend) -> None:
    first = client.responses.create(model="m", input="hello")
    second = client.responses.create(model="m", input="more", previous_response_id=first.id)
    assert backend.requests[1].json["previous_response_id"] == first.id
    backend.pages[f"/v1/responses/{second.id}"] = bytes(backend.requests[1].answer)
    assert client.responses.retrieve(second.id).output_text == TEXT
    backend.behave(body=bytes(backend.requests[1].answer))
    assert client.responses.cancel(second.id).id == second.id
    client.responses.delete(second.id)
    assert [request.method for request in backend.requests] == ["POST"] * 3 + ["DELETE"]


def test_aliases(client: OpenAI, backend: FakeBackend) -> None:
    answer = client.chat.completions.create(model="small", messages=ASK)
    assert answer.model == "m"
    assert backend.requests[0].json["model"] == "m"
    assert client.models.retrieve("small").id == "small"


def test_embeddings(client: OpenAI, backend: FakeBackend) -> None:
    answer = client.embeddings.create(model="m", input=["one", "two", "three"])
    assert [entry.embedding for entry in answer.data] == [[0.5, -0.25]] * 3


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["lora", "m", "small"]
    assert client.models.retrieve("lora").id == "lora"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_unknown_model(client: OpenAI, backend: FakeBackend) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nothing", messages=ASK)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id
    assert backend.requests == []


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_the_backends_errors(
    client: OpenAI,
    backend: FakeBackend,
    status: int,
    error: type[openai.APIStatusError],
    streaming: bool,
) -> None:
    backend.behave(status=status)
    with pytest.raises(error) as caught:
        client.chat.completions.create(model="m", messages=ASK, stream=streaming)
    assert f"fake backend says {status}" in caught.value.message


def test_a_stream_that_breaks_off_raises(client: OpenAI, backend: FakeBackend) -> None:
    backend.behave(cut_after=3, itl=0.01)
    stream: Any = client.chat.completions.create(model="m", messages=ASK, stream=True)
    with pytest.raises(openai.APIError):
        list(stream)


def test_no_answer_is_a_server_error(client: OpenAI, backend: FakeBackend) -> None:
    backend.behave(script=(Cut.FIN,))
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="m", messages=ASK)
    assert caught.value.status_code == 502


def test_malformed_request(gw: GatewayProcess, backend: FakeBackend) -> None:
    with OpenAI(base_url=f"{gw.url}/v1", api_key="none", max_retries=0) as made:
        with pytest.raises(openai.BadRequestError) as caught:
            made.post("/chat/completions", cast_to=object, content=b"{", options={})
        assert caught.value.type == "invalid_request_error"
    assert backend.requests == []


def test_answers_tell_where_they_came_from(client: OpenAI, backend: FakeBackend) -> None:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=ASK)
    assert raw.headers["x-prefixgate-backend"]
    assert raw.headers["x-prefixgate-decision"]
    assert raw.headers["x-prefixgate-matched-tokens"].isdigit()
    assert raw.headers["x-prefixgate-queue-ms"].isdigit()
    assert raw.request_id


def test_async_client(gw: GatewayProcess, backend: FakeBackend) -> None:
    async def ask() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="none") as made:
            plain = await made.chat.completions.create(model="m", messages=ASK)
            stream: Any = await made.chat.completions.create(model="m", messages=ASK, stream=True)
            parts = [
                chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices
            ]
            return plain.choices[0].message.content, "".join(parts)

    assert asyncio.run(ask()) == (TEXT, TEXT)
