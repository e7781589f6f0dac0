"""Each engine's pages as its current and older releases have them, and as nobody should."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.engines.engine import UNKNOWN_CACHE, UNKNOWN_LOAD, Cache, EngineLoad
from gateway.fleet.engines.numbers import MAX_COUNT
from gateway.fleet.engines.table import ENGINES, engine_of
from gateway.fleet.page import Page
from gateway.types import EngineKind, Priority
from tests.fleet.engine import vllm_metrics

VLLM = b"""
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 500.0
process_start_time_seconds 1.7e9
"""
LOADS = {
    "version": "0.5.23",
    "loads": [
        {
            "dp_rank": rank,
            "num_running_reqs": 3,
            "num_waiting_reqs": 1,
            "num_waiting_uncached_tokens": 812,
            "token_usage": use,
            "total_prefill_uncached_tokens": 1000,
        }
        for rank, use in enumerate((0.25, 0.75))
    ],
}


def page(body: bytes, status: int = 200) -> Page:
    return Page("/x", status, body)


def load(kind: EngineKind, path: str, body: Any) -> EngineLoad:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ENGINES[kind].load_pages[path](page(text))


def cache(kind: EngineKind, body: bytes) -> Cache:
    [read, *_] = ENGINES[kind].cache_pages.values()
    return read(page(body))


@pytest.mark.parametrize(
    ("kind", "path", "body", "said"),
    [
        (EngineKind.VLLM, "/metrics", VLLM, EngineLoad(5, 1, None, 0.375, 1.7e9, 1500.0)),
        (
            EngineKind.VLLM,
            "/metrics",
            VLLM.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc"),
            EngineLoad(5, 1, None, 0.375, 1.7e9, 1500.0),
        ),
        (EngineKind.SGLANG, "/v1/loads", LOADS, EngineLoad(6, 2, 1624, 0.5, None, 2000.0)),
        (
            EngineKind.SGLANG,
            "/metrics",
            b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n",
            EngineLoad(3, 2, None, 0.5),
        ),
        (
            EngineKind.SGLANG,
            "/metrics",
            b"sglang_num_running_reqs 3\nsglang_num_queue_reqs 2\nsglang_token_usage 0.5\n",
            EngineLoad(3, 2, None, 0.5),
        ),
        (
            EngineKind.TRTLLM,
            "/prometheus/metrics",
            b"trtllm_num_requests_running 4\ntrtllm_num_requests_waiting 1\n"
            b"trtllm_kv_cache_utilization 0.5\ntrtllm_kv_cache_missed_blocks_total 7\n",
            EngineLoad(4, 1, None, 0.5, None, 7.0),
        ),
        (
            EngineKind.LLAMACPP,
            "/metrics",
            b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n"
            b"llamacpp:kv_cache_usage_ratio 0.99\nllamacpp:prompt_tokens_total 10\n",
            EngineLoad(2, 3, None, None, None, 10.0),
        ),
        (
            EngineKind.LLAMACPP,
            "/slots",
            [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}],
            EngineLoad(1),
        ),
        (
            EngineKind.TGI,
            "/metrics",
            b"tgi_batch_current_size 5\ntgi_queue_size 2\ntgi_request_count 9\n",
            EngineLoad(5, 2, None, None, None, 9.0),
        ),
    ],
)
def test_load(kind: EngineKind, path: str, body: Any, said: EngineLoad) -> None:
    assert load(kind, path, body) == said
    assert not said.says_nothing


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (vllm_metrics(), Cache(16_000, 16, 1.7e9)),
        (vllm_metrics(kv_cache_size_tokens=15_000), Cache(15_000, 16, 1.7e9)),
        (vllm_metrics(kv_cache_size_tokens=None), Cache(16_000, 16, 1.7e9)),
        (vllm_metrics(num_gpu_blocks=None), Cache(None, 16, 1.7e9)),
        (vllm_metrics(block_size=None), Cache(None, None, 1.7e9)),
        (vllm_metrics(started=None), Cache(16_000, 16, None)),
        (vllm_metrics(engines=2), Cache(32_000, 16, 1.7e9)),
        (vllm_metrics(cache_dtype="auto"), Cache(16_000, 16, 1.7e9)),
        (vllm_metrics(cache_dtype="fp8_e4m3"), Cache(16_000, 16, 1.7e9, dtype="fp8_e4m3")),
        (vllm_metrics(num_gpu_blocks="9" * 30), Cache(None, 16, 1.7e9)),
        (b"process_start_time_seconds 1.76e+09\n", Cache(None, None, 1.76e9)),
        (b"process_start_time_seconds soon\n", UNKNOWN_CACHE),
        (b"vllm:cache_config_info{block_size=\xff\xfe", UNKNOWN_CACHE),
        (b"", UNKNOWN_CACHE),
    ],
)
def test_cache_of_vllm(metrics: bytes, found: Cache) -> None:
    assert cache(EngineKind.VLLM, metrics) == found


@pytest.mark.parametrize(
    ("kind", "body", "found"),
    [
        (
            EngineKind.SGLANG,
            b'{"page_size":64,"max_total_num_tokens":50000,"kv_events":null,"x":[1]}',
            Cache(50_000, 64),
        ),
        (
            EngineKind.SGLANG,
            b'{"page_size":1,"schedule_low_priority_values_first":true}',
            Cache(None, 1, flipped=True),
        ),
        (
            EngineKind.SGLANG,
            b'{"page_size":1,"kv_cache_dtype":"fp8_e5m2","version":"0.5.23"}',
            Cache(None, 1, dtype="fp8_e5m2", version="0.5.23"),
        ),
        (
            EngineKind.SGLANG,
            b'{"page_size":1,"kv_cache_dtype":"auto","version":null}',
            Cache(None, 1),
        ),
        (EngineKind.SGLANG, b'{"page_size":1,"kv_cache_dtype":8,"version":5}', Cache(None, 1)),
        (
            EngineKind.SGLANG,
            b'{"page_size":1,"chunked_prefill_size":8192}',
            Cache(None, 1, chunk_tokens=8192),
        ),
        (EngineKind.SGLANG, b'{"page_size":1,"chunked_prefill_size":-1}', Cache(None, 1)),
        (EngineKind.SGLANG, b'{"page_size":-64,"max_total_num_tokens":-5}', UNKNOWN_CACHE),
        (
            EngineKind.TRTLLM,
            b"trtllm_kv_cache_max_blocks 1000\ntrtllm_kv_cache_tokens_per_block 32\n",
            Cache(32_000, 32),
        ),
        (
            EngineKind.LLAMACPP,
            b'{"total_slots":4,"default_generation_settings":{"n_ctx":2048,"params":{}}}',
            Cache(8192),
        ),
        (EngineKind.LLAMACPP, b'{"total_slots":4}', UNKNOWN_CACHE),
        (
            EngineKind.LLAMACPP,
            b'{"total_slots":-4,"default_generation_settings":{"n_ctx":-2048}}',
            UNKNOWN_CACHE,
        ),
        (EngineKind.TGI, b'{"model_id":"m","max_batch_total_tokens":9000}', Cache(9000)),
        (EngineKind.TGI, b'{"model_id":"m"}', UNKNOWN_CACHE),
    ],
)
def test_cache_of_the_others(kind: EngineKind, body: bytes, found: Cache) -> None:
    assert cache(kind, body) == found


def test_pages_that_are_drained_by_their_reader_are_not_read() -> None:
    trtllm = ENGINES[EngineKind.TRTLLM]
    assert "/metrics" not in {*trtllm.load_pages, *trtllm.cache_pages}


def test_marks() -> None:
    def shown(kind: EngineKind, body: bytes) -> bool:
        mark = ENGINES[kind].mark
        assert mark is not None
        return mark.shown_by(page(body))

    assert shown(EngineKind.SGLANG, b'{"page_size":64}')
    assert not shown(EngineKind.SGLANG, b'{"disaggregated_params":null}')
    assert shown(EngineKind.LLAMACPP, b'{"total_slots":4}')
    assert shown(EngineKind.TGI, b'{"model_id":"m"}')
    assert shown(EngineKind.OLLAMA, b'{"version":"1"}')


def test_every_kind_is_in_the_table() -> None:
    assert set(ENGINES) == set(EngineKind)
    assert all(engine.kind is kind for kind, engine in ENGINES.items())
    assert engine_of(None) is ENGINES[EngineKind.OPENAI]


def test_priorities_keep_normal_at_what_engines_assume() -> None:
    for engine in ENGINES.values():
        assert Priority.NORMAL not in engine.priorities
        assert set(engine.priorities) in ({Priority.HIGH, Priority.LOW}, set())


NUMBERS = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.none(), max_size=2)
)
NAMES = (
    *("loads", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens"),
    *("token_usage", "total_prefill_uncached_tokens", "page_size", "max_total_num_tokens"),
    *("total_slots", "default_generation_settings", "n_ctx", "is_processing", "model_id"),
    *("max_batch_total_tokens", "version"),
)
TREES = st.recursive(
    NUMBERS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=8)
    ),
    max_leaves=20,
)
LINES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
                "vllm:prompt_tokens_total",
                "vllm:cache_config_info",
                "trtllm_kv_cache_max_blocks",
                "trtllm_kv_cache_tokens_per_block",
                "sglang:token_usage",
                "process_start_time_seconds",
            ]
        ),
        st.sampled_from(["", '{engine="0"}', '{block_size="16",num_gpu_blocks="9"}', "{", '{a="}']),
        NUMBERS.map(str),
    ).map(lambda parts: "{}{} {}".format(*parts)),
    max_size=12,
).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))


def _holds(read: Callable[[Page], Cache | EngineLoad], body: bytes, status: int) -> None:
    found = read(page(body, status))
    if isinstance(found, Cache):
        assert found.capacity_tokens is None or 0 < found.capacity_tokens <= MAX_COUNT
        assert found.block_size is None or found.block_size > 0
        return
    for size in (found.running, found.waiting, found.waiting_tokens):
        assert size is None or 0 <= size <= MAX_COUNT
    assert found.kv_use is None or 0.0 <= found.kv_use <= 1.0
    assert found.work is None or found.work >= 0.0
    if status != 200:
        return
    assert found.says_nothing is (found.running is found.waiting is found.kv_use is None)


@given(
    st.binary(max_size=200) | TREES.map(lambda tree: json.dumps(tree).encode()) | LINES,
    st.sampled_from([200, 200, 200, 401, 500]),
)
def test_whatever_a_page_says_the_numbers_can_be_true(body: bytes, status: int) -> None:
    for engine in ENGINES.values():
        for read in (*engine.cache_pages.values(), *engine.load_pages.values()):
            _holds(read, body, status)
        if engine.mark is not None:
            engine.mark.shown_by(page(body, status))


@pytest.mark.parametrize("body", [b"", b"not json", b"[" * 100_000, b"\xff", b"{}", b"[]"])
def test_broken_pages_say_nothing(body: bytes) -> None:
    for kind, engine in ENGINES.items():
        for read in engine.cache_pages.values():
            assert read(page(body)) == UNKNOWN_CACHE
        for path, tell in engine.load_pages.items():
            if (kind, path, body) != (EngineKind.LLAMACPP, "/slots", b"[]"):
                assert tell(page(body)) == UNKNOWN_LOAD
