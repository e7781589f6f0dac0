"""Bodies and event streams of the routes an engine serves, as engines write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.harness.behaviour import Behaviour, UsageStyle

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
CREATED = 1_700_000_000


def event(payload: Json, name: str | None = None) -> bytes:
    line = b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line


def prompt_tokens(body: bytes, how: Behaviour) -> int:
    """The count that is wanted, or one that depends on nothing but the request's size."""
    return max(1, len(body) // 4) if how.prompt_tokens is None else how.prompt_tokens


def stream_events(path: str, request: Json, body: bytes, how: Behaviour) -> list[bytes]:
    """The events of a streamed answer, in the route's dialect."""
    model = request.get("model", "m")
    if path.endswith("/messages"):
        return list(_messages_events(model, body, how))
    if path.endswith("/responses"):
        return list(_responses_events(model, body, how))
    chat = path.endswith("/chat/completions")
    return [*_openai_events(chat, model, body, how), DONE]


def json_body(path: str, request: Json, body: bytes, how: Behaviour) -> bytes:
    """The whole body of an answer that is not streamed, in the route's dialect."""
    return json.dumps(_json_answer(path, request, body, how), ensure_ascii=False).encode()


def error_body(path: str, status: int) -> bytes:
    message = f"fake backend says {status}"
    if path.endswith("/messages"):
        payload: Json = {"type": "error", "error": {"type": "api_error", "message": message}}
    else:
        payload = {"error": {"message": message, "type": "fake", "param": None, "code": status}}
    return json.dumps(payload).encode()


def error_event(path: str) -> bytes:
    """An error in mid-stream, and what ends a stream in the route's dialect."""
    error: Json = {"message": "fake backend failed", "type": "fake", "param": None, "code": 500}
    if path.endswith("/messages"):
        return event(
            {"type": "error", "error": {"type": "api_error", "message": "failed"}}, "error"
        )
    if path.endswith("/responses"):
        return event({**error, "type": "error", "sequence_number": 0}, "error")
    return event({"error": error}) + DONE


def model_list(models: tuple[str, ...], owner: str) -> bytes:
    entries = [
        {"id": model, "object": "model", "created": CREATED, "owned_by": owner} for model in models
    ]
    return json.dumps({"object": "list", "data": entries}).encode()


def vllm_metrics(
    running: int, waiting: int, kv_use: float, *, started: float, capacity: int
) -> bytes:
    """A vLLM's /metrics, as far as a gateway looks at it."""
    config = f'block_size="16",num_gpu_blocks="{capacity // 16}",engine="0"'
    labels = '{engine="0",model_name="m"}'
    return (
        f"vllm:num_requests_running{labels} {running}\n"
        f"vllm:num_requests_waiting{labels} {waiting}\n"
        f"vllm:kv_cache_usage_perc{labels} {kv_use}\n"
        f"vllm:cache_config_info{{{config}}} 1.0\n"
        f"process_start_time_seconds {started}\n"
    ).encode()


def _usage(body: bytes, completion: int, how: Behaviour) -> Json:
    prompt = prompt_tokens(body, how)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": how.cached_tokens},
    }


def _openai_events(chat: bool, model: str, body: bytes, how: Behaviour) -> Iterator[bytes]:
    deltas = list(_chat_deltas(how)) if chat else [{"text": text} for text in how.content]
    total = len(how.tool_arguments) or len(how.content)
    last = len(deltas)
    finish = "tool_calls" if how.tool_arguments else "stop"
    for number, delta in enumerate([*deltas, None]):
        choice: Json = {"index": 0, "finish_reason": finish if delta is None else None}
        if chat:
            choice["delta"] = delta or {}
        else:
            choice |= {"text": "", "logprobs": None} | (delta or {})
        chunk: Json = {
            "id": "gen-1",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": CREATED,
            "model": model,
            "choices": [choice],
        }
        if (
            how.usage is UsageStyle.EVERY
            or (how.usage is UsageStyle.LAST and number == last)
            or (how.usage is UsageStyle.MIDDLE and number == last // 2)
        ):
            running = total if how.usage is not UsageStyle.EVERY else min(number, total)
            chunk["usage"] = _usage(body, running, how)
        yield event(chunk)
    if how.usage is UsageStyle.SEPARATE:
        yield event(chunk | {"choices": [], "usage": _usage(body, total, how)})


def _chat_deltas(how: Behaviour) -> Iterator[Json]:
    yield {"role": "assistant", "content": ""}
    for number in range(how.reasoning):
        yield {"reasoning_content": f"r{number} "}
    if how.tool_arguments:
        function: Json = {"name": "lookup", "arguments": ""}
        yield {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
        for piece in how.tool_arguments:
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        return
    for text in how.content:
        yield {"content": text}


def _messages_events(model: str, body: bytes, how: Behaviour) -> Iterator[bytes]:
    def named(payload: Json) -> bytes:
        return event(payload, payload["type"])

    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens(body, how), "output_tokens": 1},
    }
    yield named({"type": "message_start", "message": message})
    if how.tool_arguments:
        block: Json = {"type": "tool_use", "id": "c1", "name": "lookup", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": p} for p in how.tool_arguments]
    else:
        block = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": text} for text in how.content]
    yield named({"type": "content_block_start", "index": 0, "content_block": block})
    for delta in deltas:
        yield named({"type": "content_block_delta", "index": 0, "delta": delta})
    yield named({"type": "content_block_stop", "index": 0})
    stop = "tool_use" if how.tool_arguments else "end_turn"
    yield named(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": len(deltas)},
        }
    )
    yield named({"type": "message_stop"})


def _responses_events(model: str, body: bytes, how: Behaviour) -> Iterator[bytes]:
    sequence = iter(range(1_000_000))

    def named(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(sequence), **fields}, kind)

    item = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = "".join(how.content)
    yield named("response.created", response=_response(model, body, how, "in_progress"))
    message = _output_message("", "in_progress") | {"content": []}
    yield named("response.output_item.added", output_index=0, item=message)
    part = {"type": "output_text", "text": "", "annotations": []}
    yield named("response.content_part.added", **item, part=part)
    for piece in how.content:
        yield named("response.output_text.delta", **item, delta=piece, logprobs=[])
    yield named("response.output_text.done", **item, text=text, logprobs=[])
    yield named("response.content_part.done", **item, part=part | {"text": text})
    done = _output_message(text, "completed")
    yield named("response.output_item.done", output_index=0, item=done)
    yield named("response.completed", response=_response(model, body, how, "completed"))


def _output_message(text: str, status: str) -> Json:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _response(model: str, body: bytes, how: Behaviour, status: str) -> Json:
    done = status == "completed"
    prompt, output = prompt_tokens(body, how), len(how.content)
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": how.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }
    return {
        "id": how.response_id,
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "model": model,
        "output": [_output_message("".join(how.content), status)] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": usage if done else None,
    }


def _json_answer(path: str, request: Json, body: bytes, how: Behaviour) -> Json:
    model = request.get("model", "m")
    text = "".join(how.content)
    usage = _usage(body, len(how.content), how)
    if path.endswith("/chat/completions"):
        message: Json = {"role": "assistant", "content": text}
        finish = "stop"
        if how.tool_arguments:
            finish = "tool_calls"
            call = {"name": "lookup", "arguments": "".join(how.tool_arguments)}
            calls = [{"id": "c1", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        return {
            "id": "gen-1",
            "object": "chat.completion",
            "created": CREATED,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": usage,
        }
    if path.endswith("/completions"):
        return {
            "id": "gen-1",
            "object": "text_completion",
            "created": CREATED,
            "model": model,
            "choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}],
            "usage": usage,
        }
    if path.endswith("/responses"):
        return _response(model, body, how, "completed")
    if path.endswith("/messages"):
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens(body, how), "output_tokens": len(how.content)},
        }
    if path.endswith("/embeddings"):
        given = request.get("input", "")
        many = isinstance(given, list) and bool(given) and isinstance(given[0], (str, list))
        data = [
            {"object": "embedding", "index": number, "embedding": [0.5, -0.25]}
            for number in range(len(given) if many else 1)
        ]
        return {"object": "list", "model": model, "data": data, "usage": usage}
    return {"path": path, "model": model}
