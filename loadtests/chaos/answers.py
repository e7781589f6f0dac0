"""The bytes of a fake engine's answers: as a vLLM writes them, each token with where it is from.

A token is `request:incarnation:number `: of two answers that were spliced, of a piece that came
twice or of one that is missing, the text tells.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MODEL = "chaos"
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
ENGINE_ERROR = "engine_error"
"""Type of the errors that engines make, to tell them from the gateway's own."""

_EVENT = (
    b'data: {"id":"%b","object":"chat.completion.chunk","created":1700000000,"model":"chaos",'
    b'"choices":[{"index":0,"delta":{%b},"finish_reason":%b}]%b}\n\n'
)


class Ask(msgspec.Struct):
    """A request's body, as far as an engine looks at it.

    Attributes:
        user: the request's name, by which its answers are told apart.
    """

    user: str = ""
    stream: bool = False
    max_tokens: int = 1


def token(name: str, incarnation: str, number: int) -> str:
    return f"{name}:{incarnation}:{number} "


def _usage(size: int, tokens: int) -> bytes:
    prompt = size // 4 or 1
    return (
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":0}}' % (prompt, tokens, prompt + tokens)
    )


def events(ask: Ask, incarnation: str, size: int) -> Iterator[bytes]:
    """The events of a stream: the role, one for each token, the end with the counts."""
    name = ask.user.encode()
    yield _EVENT % (name, b'"role":"assistant","content":""', b"null", b"")
    for number in range(ask.max_tokens):
        content = b'"content":"%b"' % token(ask.user, incarnation, number).encode()
        yield _EVENT % (name, content, b"null", b"")
    yield _EVENT % (name, b"", b'"stop"', b"," + _usage(size, ask.max_tokens)) + DONE


def whole(ask: Ask, incarnation: str, size: int) -> bytes:
    text = "".join(token(ask.user, incarnation, number) for number in range(ask.max_tokens))
    return (
        b'{"id":"%b","object":"chat.completion","created":1700000000,"model":"chaos","choices":'
        b'[{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],%b}'
        % (ask.user.encode(), text.encode(), _usage(size, ask.max_tokens))
    )


def embedding(ask: Ask, incarnation: str, size: int) -> bytes:
    """It names its origin in a member of its own: a vector has no text."""
    return (
        b'{"id":"%b","object":"list","model":"chaos","data":[{"object":"embedding","index":0,'
        b'"embedding":[0.5,-0.25]}],%b}'
        % (token(ask.user, incarnation, 0).encode(), _usage(size, 0))
    )


def error(status: int) -> bytes:
    return b'{"error":{"message":"the engine says %d","type":"%b","param":null,"code":%d}}' % (
        status,
        ENGINE_ERROR.encode(),
        status,
    )


def error_event() -> bytes:
    """In mid-stream; as of vLLM, the stream's usual end follows."""
    return b"data: " + error(500) + b"\n\n" + DONE


def head(status: int, content_type: str, length: int | None, extra: str = "") -> bytes:
    """
    Args:
        length: of the body; None for chunks.
        extra: further lines, each with its end.
    """
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return (
        f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{framing}\r\n{extra}\r\n"
    ).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def model_list() -> bytes:
    return msgspec.json.encode(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]}
    )


def metrics(started: float, running: int) -> bytes:
    return (
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="8000"}} 1.0\n'
        f'vllm:num_requests_running{{model_name="{MODEL}"}} {running}.0\n'
        f'vllm:num_requests_waiting{{model_name="{MODEL}"}} 0.0\n'
        f'vllm:kv_cache_usage_perc{{model_name="{MODEL}"}} 0.1\n'
        f"process_start_time_seconds {started}\n"
    ).encode()
