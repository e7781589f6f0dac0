"""Group 17: what clients may send and ask for, on every route, and that it arrives as it is."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from policies.registry import names
from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Framing
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End
from tests.harness.routes import (
    ALL,
    CHAT,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    STREAMING,
    Json,
    Route,
    text,
)

by_route = pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)


@pytest.fixture(scope="module", params=["httptools", "h11"])
def gw(
    request: pytest.FixtureRequest, shared_backend: FakeBackend, module_gateway: StartGateway
) -> GatewayProcess:
    return module_gateway([shared_backend], server={"parser": request.param})


# A01

VENDOR = (
    b'"return_token_ids": true, "guided_json":{"type":"object"},"chat_template_kwargs" : '
    b'{"enable_thinking":false},\n"nvext":{"greed_sampling":true}, "x_future":{"a":[1]}, "n":1.0'
)


@pytest.mark.parametrize("route", ALL, ids=lambda route: route.name)
def test_A01_unknown_fields_pass(gw: GatewayProcess, backend: FakeBackend, route: Route) -> None:
    sent = json.dumps(route.body(["hello"])).encode()[:-1] + b", " + VENDOR + b" }"
    assert gw.post(route.path, sent).status_code == 200
    [request] = backend.requests
    assert request.body == sent


# A03

THOUGHTS: tuple[tuple[Route, Any], ...] = (
    (CHAT, {"reasoning_content": "I think so"}),
    (CHAT, {"reasoning": "I think so"}),
    (
        MESSAGES,
        {
            "content": [
                {"type": "thinking", "thinking": "I think so", "signature": "c2lnbmVk"},
                {"type": "redacted_thinking", "data": "aGlkZGVu"},
                {"type": "text", "text": "yes"},
            ]
        },
    ),
)


@pytest.mark.parametrize(("route", "turn"), THOUGHTS)
def test_A03_reasoning_in_the_history_is_kept_and_keyed(
    gw: GatewayProcess, backend: FakeBackend, route: Route, turn: Json
) -> None:
    body = route.body([text("A03 question", 2000), "yes", "go on"])
    body["messages"][1] |= turn
    sent = json.dumps(body, indent=1).encode()
    assert gw.post(route.path, sent).status_code == 200
    assert backend.requests[0].body == sent
    bare = route.body([text("A03 question", 2000), "yes", "go on"])
    explained = [
        gw.admin("POST", "/explain", {"path": route.path, "body": b}) for b in (body, bare)
    ]
    assert explained[0]["key_bytes"] > explained[1]["key_bytes"]


def test_A03_reasoning_items_of_responses_are_kept_and_keyed(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I think so"}],
        "encrypted_content": "aGlkZGVu",
    }
    body = RESPONSES.body(["question"])
    with_thought = {**body, "input": [*body["input"], thought]}
    sent = json.dumps(with_thought).encode()
    assert gw.post(RESPONSES.path, sent).status_code == 200
    assert backend.requests[0].body == sent
    sizes = [
        gw.admin("POST", "/explain", {"path": RESPONSES.path, "body": b})["key_bytes"]
        for b in (with_thought, body)
    ]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("segment", [None, 7])
def test_A03_streamed_reasoning_is_unchanged(
    gw: GatewayProcess, backend: FakeBackend, segment: int | None
) -> None:
    backend.behave(reasoning=20, n_tokens=3, segment=segment)
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.stream())
    assert answer.body == bytes(backend.requests[0].answer)
    assert answer.body.count(b"reasoning_content") == 20


# A04

BOUNDARY = "----boundary--7MA4YWxk"
AUDIO = bytes(range(256)) * (5 * 4096)
"""5 MB, with every byte that there is."""


def form(*, model_first: bool, stream: bool, model: str = "m") -> bytes:
    fields = [("model", model), ("response_format", "json")]
    if stream:
        fields.append(("stream", "true"))
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    file = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="é \\"1\\".wav"\r\n'
        "Content-Type: audio/x-wav\r\nX-Odd: kept\r\n\r\n"
    ).encode() + AUDIO
    parts = [*parts, file + b"\r\n"] if model_first else [file + b"\r\n", *parts]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


FORM = {"content-type": f'multipart/form-data; boundary="{BOUNDARY}"'}


def upload(gw: GatewayProcess, path: str, body: bytes) -> Any:
    return gw.http.post(path, content=body, headers=FORM)


@pytest.fixture(scope="module", params=names())
def audio(
    request: pytest.FixtureRequest, module_gateway: StartGateway
) -> Iterator[tuple[GatewayProcess, FakeBackend, FakeBackend]]:
    with FakeBackend("whisper") as hears, FakeBackend("m") as other:
        settings = {"policy": {"name": request.param}, "models": {"ears": ["whisper"]}}
        yield module_gateway([other, hears], **settings), hears, other


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_A04_audio_under_every_policy(
    audio: tuple[GatewayProcess, FakeBackend, FakeBackend],
    path: str,
    model_first: bool,
    stream: bool,
) -> None:
    gw, hears, other = audio
    hears.reset()
    other.reset()
    events = b'data: {"type":"transcript.text.delta","delta":"hi"}\n\ndata: [DONE]\n\n'
    if stream:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        hears.behave(script=(head % len(events) + events,))
    body = form(model_first=model_first, stream=stream, model="whisper")
    answer = upload(gw, path, body)
    assert answer.status_code == 200
    if stream:
        assert answer.content == events
    [request] = hears.requests
    assert request.body == body
    assert request.header(b"content-type") == FORM["content-type"].encode()
    assert other.requests == []


@pytest.mark.parametrize("model_first", [True, False])
def test_A04_an_alias_in_a_form_is_replaced_there_alone(
    audio: tuple[GatewayProcess, FakeBackend, FakeBackend], model_first: bool
) -> None:
    gw, hears, other = audio
    hears.reset()
    sent = form(model_first=model_first, stream=False, model="ears")
    assert upload(gw, "/v1/audio/transcriptions", sent).status_code == 200
    assert hears.requests[0].body == form(model_first=model_first, stream=False, model="whisper")
    assert other.requests == []


def test_A04_retries_do_not_pile_up_copies(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Nothing listens at two of the three, so the upload is sent again."""
    backends = [start_backend("m") for _ in range(3)]
    gw = gateway(backends, health={"interval": 60.0, "unhealthy_after": 100})
    body = form(model_first=False, stream=False)
    upload(gw, "/v1/audio/transcriptions", body)
    before = gw.rss()
    for backend in backends[:2]:
        backend.stop()
    for _ in range(10):
        assert upload(gw, "/v1/audio/transcriptions", body).status_code == 200
    assert all(request.body == body for request in backends[2].requests)
    assert gw.rss() - before < 6 * len(body)


# A06

SUB_ROUTES = (
    ("/v1/messages/count_tokens?beta=true", MESSAGES, {"input_tokens": 12}),
    ("/v1/responses/input_tokens", RESPONSES, {"input_tokens": 12}),
    ("/v1/responses/input_tokens?x=%2F&x=2", RESPONSES, {"input_tokens": 12}),
    ("/v1/chat/completions/render", CHAT, {"prompt_token_ids": [1]}),
    ("/tokenize", CHAT, {"tokens": [1, 2]}),
)


@pytest.mark.parametrize(("target", "route", "says"), SUB_ROUTES)
def test_A06_sub_routes_and_query_strings(
    gw: GatewayProcess, backend: FakeBackend, target: str, route: Route, says: Json
) -> None:
    before = gw.metrics()
    backend.next(body=json.dumps(says).encode())
    sent = json.dumps(route.body(["hello"])).encode()
    answer = gw.post(target, sent)
    assert (answer.status_code, answer.json()) == (200, says)
    [request] = backend.requests
    assert (request.target, request.body) == (target, sent)
    assert gw.outcomes_since(before) == {"ok": 1}
    after = gw.metrics()
    for counted in ("prefixgate_output_tokens_total", "prefixgate_ttft_seconds_count"):
        assert after.total(counted) == before.total(counted)


@by_route
def test_A06_query_strings_do_not_change_the_dialect(
    gw: GatewayProcess, backend: FakeBackend, route: Route
) -> None:
    before = gw.metrics()
    assert gw.post(route.path + "?beta=true", route.stream()).status_code == 200
    assert backend.requests[0].target == route.path + "?beta=true"
    after = gw.settles(
        lambda m: (
            m.total("prefixgate_ttft_seconds_count") > before.total("prefixgate_ttft_seconds_count")
        )
    )
    tokens = "prefixgate_output_tokens_total"
    assert after.total(tokens) - before.total(tokens) == 5


# A10

INPUTS: dict[str, Any] = {
    "string": "hello",
    "list": ["hello", "world"],
    "ids": [1, 2, 3],
    "lists of ids": [[1, 2, 3], [4]],
    "2048 items": [f"item {number}" for number in range(2048)],
}


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_A10_embeddings_inputs(
    gw: GatewayProcess, backend: FakeBackend, given: Any, encoding: str
) -> None:
    sent = json.dumps({"model": "m", "encoding_format": encoding, "input": given}).encode()
    answer = gw.post(EMBEDDINGS.path, sent)
    assert answer.status_code == 200
    assert backend.requests[0].body == sent
    assert gw.explain(EMBEDDINGS.path, json.loads(sent)).backend


@pytest.mark.parametrize("policy", names())
def test_A10_embeddings_spread_over_backends(
    start_backend: StartBackend, gateway: StartGateway, policy: str
) -> None:
    backends = [start_backend() for _ in range(2)]
    gw = gateway(backends, policy={"name": policy})
    for number in range(40):
        ids = [number * 1000 + at for at in range(300)]
        assert gw.post(EMBEDDINGS.path, {"model": "m", "input": ids}).status_code == 200
    assert min(len(backend.requests) for backend in backends) >= 8


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED])
def test_A10_answers_of_50_MB_are_streamed(
    gw: GatewayProcess, backend: FakeBackend, framing: Framing
) -> None:
    vector = base64.b64encode(bytes(range(256)) * 64).decode()
    entry = json.dumps({"object": "embedding", "index": 0, "embedding": vector})
    answer = ('{"data":[' + ",".join([entry] * (50_000_000 // len(entry))) + "]}").encode()
    backend.next(body=answer, framing=framing, pieces=400)
    before = gw.rss()
    with gw.http.stream("POST", EMBEDDINGS.path, json=EMBEDDINGS.body(["hello"])) as streamed:
        pieces = streamed.iter_raw()
        parts = [next(pieces)]
        assert not backend.requests[0].complete
        assert streamed.status_code == 200
        peak = gw.rss()
        for number, piece in enumerate(pieces):
            parts.append(piece)
            if number % 100 == 0:
                peak = max(peak, gw.rss())
    assert b"".join(parts) == answer
    assert peak - before < 30_000_000


# A12


@by_route
@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.LENGTH])
def test_A12_an_answer_in_three_pieces(
    gw: GatewayProcess, backend: FakeBackend, route: Route, framing: Framing
) -> None:
    backend.next(pieces=3, framing=framing)
    with gw.client() as client:
        answer = client.exchange(route.path, route.body(["hello"]))
    assert answer.status == 200
    assert answer.body == bytes(backend.requests[0].answer)


def chunked(*pieces: bytes, trailers: bytes = b"") -> tuple[bytes | float, ...]:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    segments: list[bytes | float] = [head]
    for piece in pieces:
        segments += [b"%x\r\n%b\r\n" % (len(piece), piece), 0.02]
    return (*segments, b"0\r\n%b\r\n" % trailers)


@pytest.mark.parametrize("trailers", [b"", b"x-checksum: abc\r\nx-usage: 5\r\n"])
def test_A12_the_last_piece_may_come_alone_and_with_trailers(
    gw: GatewayProcess, backend: FakeBackend, trailers: bytes
) -> None:
    backend.next(script=chunked(b'{"choices":', b"[]", b"}", trailers=trailers))
    with gw.client() as client:
        for _ in range(2):  # the connection to the backend can be used again
            answer = client.exchange(CHAT.path, CHAT.body(["hello"]))
            assert (answer.status, answer.end) == (200, End.FRAMED)
        assert answer.json["choices"]
    assert len({request.connection for request in backend.requests}) == 1


def test_A12_204_and_empty_bodies(gw: GatewayProcess, backend: FakeBackend) -> None:
    with gw.client() as client:
        for how in ({"status": 204}, {"body": b""}, {"body": b"", "framing": Framing.CHUNKED}):
            backend.next(**how)
            answer = client.exchange(CHAT.path, CHAT.body(["hello"]))
            assert (answer.status, answer.body) == (how.get("status", 200), b"")
            assert answer.end is End.FRAMED
        assert client.exchange(CHAT.path, CHAT.body(["hello"])).json["choices"]


@pytest.mark.parametrize("informational", [(100,), (103,), (100, 103, 103)])
@pytest.mark.parametrize("streamed", [True, False])
def test_A12_informational_answers_come_first(
    gw: GatewayProcess, backend: FakeBackend, informational: tuple[int, ...], streamed: bool
) -> None:
    backend.next(informational=informational)
    body = CHAT.stream() if streamed else CHAT.body(["hello"])
    with gw.client() as client:
        answer = client.exchange(CHAT.path, body)
    assert answer.status == 200
    assert answer.body == bytes(backend.requests[0].answer)


# A13

ARGUMENTS = json.dumps({"query": 'ünï "quoted" \\ 🌍 ' * 30, "limit": 10}, ensure_ascii=False)


def joined(answer: Answer, read: Callable[[Any], str]) -> str:
    return "".join(map(read, answer.stream.payloads))


def chat_arguments(event: Any) -> str:
    calls = [
        call for choice in event["choices"] for call in choice["delta"].get("tool_calls") or ()
    ]
    return "".join(call["function"].get("arguments", "") for call in calls)


def messages_arguments(event: Any) -> str:
    return str(event.get("delta", {}).get("partial_json", ""))


@pytest.mark.parametrize("segment", [None, 1, 61])
@pytest.mark.parametrize(
    ("route", "read"), [(CHAT, chat_arguments), (MESSAGES, messages_arguments)]
)
def test_A13_tool_call_arguments_are_whole(
    gw: GatewayProcess,
    backend: FakeBackend,
    route: Route,
    read: Callable[[Any], str],
    segment: int | None,
) -> None:
    step = 2
    pieces = tuple(ARGUMENTS[at : at + step] for at in range(0, len(ARGUMENTS), step))
    assert len(pieces) > 250
    if segment == 1:
        pieces = pieces[:3]
    backend.next(tool_arguments=pieces, segment=segment)
    with gw.client() as client:
        answer = client.exchange(route.path, route.stream())
    assert answer.body == bytes(backend.requests[0].answer)
    assert joined(answer, read) == "".join(pieces)
    if segment != 1:
        assert json.loads(joined(answer, read)) == json.loads(ARGUMENTS)
