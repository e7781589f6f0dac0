"""The simulated engine as a process, seen through its socket."""

from __future__ import annotations

import base64
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

MODEL = "llama"
KV_TOKENS = 4096


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--model", MODEL, "alias", "--lora", "tuned", "--kv-tokens", str(KV_TOKENS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtests.sim", "--port", str(port), "--speed", "4", *options]
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await_that(lambda: process.poll() is not None or healthy(url))
        assert process.poll() is None
        yield url
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def samples(url: str) -> dict[str, float]:
    """Metric samples; those with further labels by "name/value of the last label"."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            extra = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
            found["/".join([sample.name, *extra[:1]])] = sample.value
            if sample.name != "vllm:cache_config_info":
                assert sample.labels["model_name"] == MODEL
                assert sample.labels["engine"] == "0"
    return found


def post(url: str, path: str, body: dict[str, object], **headers: str) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, headers=headers, timeout=60)


def events(url: str, path: str, body: dict[str, object]) -> list[str]:
    text = post(url, path, body | {"stream": True}).text
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


def test_a_chat_stream_is_shaped_as_vllms(url: str) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "one"}],
        "max_tokens": 5,
        "stream_options": {"include_usage": True},
        "unknown_field": {"is": "ignored"},
    }
    got = events(url, "/v1/chat/completions", body)
    assert got[-1] == "[DONE]"
    chunks = [json.loads(event) for event in got[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    role, *words, usage = chunks
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(words) == 5
    assert all(word["choices"][0]["delta"]["content"] for word in words)
    assert [word["choices"][0]["finish_reason"] for word in words] == [None] * 4 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    whole = post(url, "/v1/chat/completions", {k: v for k, v in body.items() if "opt" not in k})
    text = "".join(word["choices"][0]["delta"]["content"] for word in words)
    assert whole.json()["choices"][0]["message"]["content"] == text


def test_the_openai_sdk_and_the_second_turns_cached_tokens(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: list[dict[str, str]] = [
        {"role": "system", "content": "You are terse. " * 30},
        {"role": "user", "content": "What is a cache?"},
    ]
    first = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=100)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert first.choices[0].finish_reason == "length"
    messages.append({"role": "assistant", "content": first.choices[0].message.content})
    messages.append({"role": "user", "content": "And a block?"})
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_completion_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert len([word for word in words if word]) == 8
    usage = chunks[-1].usage
    # All that the first turn left in the cache, the answer included, in whole blocks.
    left = first.usage.total_tokens - 1
    assert usage.prompt_tokens_details.cached_tokens == left // 16 * 16
    assert usage.prompt_tokens > left


def test_completions_take_text_ids_and_lists_of_both(url: str) -> None:
    ids = post(url, "/tokenize", {"prompt": "once upon a time"}).json()["tokens"]
    asked: list[tuple[object, int, int]] = [
        ("once upon a time", 1, 4),
        (["once upon a time", "abc"], 2, 5),
        (ids, 1, 4),
        ([ids, [7]], 2, 5),
    ]
    texts = []
    for prompt, choices, prompt_tokens in asked:
        answer = post(url, "/v1/completions", {"model": MODEL, "prompt": prompt}).json()
        assert answer["object"] == "text_completion"
        assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
        assert answer["usage"]["prompt_tokens"] == prompt_tokens
        assert answer["usage"]["completion_tokens"] == 16 * choices
        texts.append(answer["choices"][0]["text"])
    assert len(set(texts)) == 1, "the same tokens, the same answer"


def test_n_answers_differ_and_their_prompt_counts_once(url: str) -> None:
    body = {"model": MODEL, "prompt": "several, please", "n": 3, "max_tokens": 4}
    answer = post(url, "/v1/completions", body).json()
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 12
    got = [json.loads(event) for event in events(url, "/v1/completions", body)[:-1]]
    for choice in answer["choices"]:
        pieces = [e["choices"][0] for e in got if e["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[-1]["finish_reason"] == "length"


def test_an_answer_without_a_limit_ends_by_itself(url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "talk"}]}
    answer = post(url, "/v1/chat/completions", body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 256


def test_embeddings_are_unit_vectors_in_both_formats(url: str) -> None:
    body = {"model": MODEL, "input": ["one text", "another text"], "dimensions": 8}
    plain = post(url, "/v1/embeddings", body).json()
    packed = post(url, "/v1/embeddings", body | {"encoding_format": "base64"}).json()
    for floats, text in zip(plain["data"], packed["data"], strict=True):
        vector = floats["embedding"]
        assert sum(x * x for x in vector) == pytest.approx(1)
        unpacked = struct.unpack("<8f", base64.b64decode(text["embedding"]))
        assert unpacked == pytest.approx(vector, rel=1e-6)
    assert plain["data"][0]["embedding"] != plain["data"][1]["embedding"]
    assert plain["usage"]["prompt_tokens"] == 5


def test_salt_and_adapter_part_the_cache(url: str) -> None:
    body: dict[str, object] = {"model": MODEL, "prompt": "salted " * 100, "max_tokens": 1}
    cached = []
    for change in ({}, {}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"model": "tuned"}):
        answer = post(url, "/v1/completions", body | change).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 160, 0, 160, 0]


def test_models_and_the_small_routes(url: str) -> None:
    models = httpx.get(f"{url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == [MODEL, "alias", "tuned"]
    assert {model["owned_by"] for model in models} == {"vllm"}
    assert models[0]["max_model_len"] == KV_TOKENS
    assert models[2]["parent"] == MODEL
    for path in ("/health", "/ping"):
        assert httpx.get(f"{url}{path}").status_code == 200
    assert "version" in httpx.get(f"{url}/version").json()
    assert httpx.get(f"{url}/load").json() == {"server_load": 0}
    assert httpx.get(f"{url}/nowhere").status_code == 404
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "abcdefgh"}]}
    counted = post(url, "/tokenize", chat).json()
    assert counted["count"] == len(counted["tokens"]) == 6
    assert counted["max_model_len"] == KV_TOKENS
    text = {"tokens": post(url, "/tokenize", {"prompt": "abcde"}).json()["tokens"]}
    assert post(url, "/detokenize", text).json() == {"prompt": "abcde"}


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"model": "other", "prompt": "a"}, 404, "NotFoundError", "`other` does not exist"),
        ({"prompt": "a" * 4 * KV_TOKENS}, 400, "BadRequestError", "maximum context length"),
        ({"prompt": "a", "max_tokens": KV_TOKENS}, 400, "BadRequestError", "maximum context"),
        ({"prompt": "a", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"prompt": "a", "stream_options": {}}, 400, "BadRequestError", "Stream options"),
        ({"prompt": []}, 400, "BadRequestError", "must not be empty"),
        ({"prompt": [-1]}, 400, "BadRequestError", "token ids"),
        ({"prompt": {"a": 1}}, 400, "BadRequestError", "$.prompt"),
    ],
)
def test_errors_have_vllms_shape(
    url: str, body: dict[str, object], status: int, kind: str, says: str
) -> None:
    answer = post(url, "/v1/completions", body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["type"] == kind
    assert error["code"] == status
    assert "param" in error


def test_bodies_that_are_not_json_are_refused(url: str) -> None:
    for content, kind in ((b"{", "application/json"), (b"{}", "text/plain")):
        answer = httpx.post(
            f"{url}/v1/completions", content=content, headers={"content-type": kind}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == 400


def test_the_request_id_becomes_the_answers(url: str) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    answer = post(url, "/v1/completions", body, **{"x-request-id": "abc"}).json()
    assert answer["id"] == "cmpl-abc"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(url: str, stream: bool) -> None:
    def running() -> float:
        return samples(url)["vllm:num_requests_running"]

    before = samples(url)["vllm:request_success_total/abort"]
    body = {"model": MODEL, "prompt": "long", "max_tokens": KV_TOKENS - 1, "stream": stream}
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)) as client:
        client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await_that(lambda: running() == 1)
        if stream:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
    await_that(lambda: running() == 0)
    after = samples(url)
    assert after["vllm:request_success_total/abort"] == before + 1
    assert after["vllm:kv_cache_usage_perc"] == 0


def test_the_cache_can_be_reset(url: str) -> None:
    body = {"model": MODEL, "prompt": "to be forgotten " * 20, "max_tokens": 1}
    cached = []
    for _ in range(3):
        if len(cached) == 2:
            assert post(url, "/reset_prefix_cache", {}).json() == {"success": True}
        usage = post(url, "/v1/completions", body).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 64, 0]


def test_the_metrics_are_there_and_move(url: str) -> None:
    before = samples(url)
    body = {"model": MODEL, "prompt": "measured " * 40, "max_tokens": 10}
    for _ in range(2):
        post(url, "/v1/completions", body)
    after = samples(url)
    moved = {
        "vllm:prefix_cache_queries_total": 180,
        "vllm:prefix_cache_hits_total": 80,
        "vllm:prompt_tokens_total": 180,
        "vllm:prompt_tokens_cached_total": 80,
        "vllm:prompt_tokens_by_source_total/local_compute": 100,
        "vllm:generation_tokens_total": 20,
        "vllm:num_preemptions_total": 0,
        "vllm:request_success_total/length": 2,
        "vllm:request_success_total/abort": 0,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:time_to_first_token_seconds_bucket/+Inf": 2,
        "vllm:inter_token_latency_seconds_count": 18,
        "vllm:e2e_request_latency_seconds_count": 2,
        "vllm:request_queue_time_seconds_count": 2,
        "vllm:iteration_tokens_total_count": 20,
        "vllm:iteration_tokens_total_sum": 118,
    }
    assert {name: after[name] - before[name] for name in moved} == moved
    assert after["vllm:time_to_first_token_seconds_sum"] > 0
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert after[f"vllm:{gauge}"] == 0
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    (info,) = [f.samples[0] for f in families if f.name == "vllm:cache_config_info"]
    assert info.value == 1
    assert info.labels["block_size"] == "16"
    assert info.labels["num_gpu_blocks"] == str(KV_TOKENS // 16)
