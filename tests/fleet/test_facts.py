from __future__ import annotations

import pytest

from gateway.fleet import facts
from gateway.fleet.facts import UNKNOWN_CACHE, Cache, ModelList
from gateway.fleet.page import Page
from gateway.types import EngineKind
from tests.fleet.engine import model_list, vllm_metrics


def page(body: bytes, status: int = 200) -> Page:
    return Page("/x", status, body)


@pytest.mark.parametrize(
    ("metrics", "cache"),
    [
        (vllm_metrics(), Cache(16_000, 16, 1.7e9)),
        (vllm_metrics(kv_cache_size_tokens=15_000), Cache(15_000, 16, 1.7e9)),
        (vllm_metrics(kv_cache_size_tokens=None), Cache(16_000, 16, 1.7e9)),
        (vllm_metrics(num_gpu_blocks=None), Cache(None, 16, 1.7e9)),
        (vllm_metrics(block_size=None), Cache(None, None, 1.7e9)),
        (vllm_metrics(started=None), Cache(16_000, 16, None)),
        (vllm_metrics(engines=2), Cache(32_000, 16, 1.7e9)),
        (b"process_start_time_seconds 1.76e+09\n", Cache(None, None, 1.76e9)),
        (b"process_start_time_seconds soon\n", UNKNOWN_CACHE),
        (b"vllm:cache_config_info{block_size=\xff\xfe", UNKNOWN_CACHE),
        (b"", UNKNOWN_CACHE),
    ],
)
def test_vllm(metrics: bytes, cache: Cache) -> None:
    assert facts.vllm_cache(page(metrics)) == cache


def test_sglang() -> None:
    body = b'{"page_size":64,"max_total_num_tokens":50000,"kv_events":null,"x":[1]}'
    assert facts.sglang_cache(page(body)) == Cache(50_000, 64)
    assert facts.is_sglang(page(body))
    assert not facts.is_sglang(page(b'{"disaggregated_params":null}'))


def test_llamacpp() -> None:
    body = b'{"total_slots":4,"default_generation_settings":{"n_ctx":2048,"params":{}}}'
    assert facts.llamacpp_cache(page(body)) == Cache(8192)
    assert facts.llamacpp_cache(page(b'{"total_slots":4}')) == UNKNOWN_CACHE
    assert facts.is_llamacpp(page(body))


@pytest.mark.parametrize(
    "broken",
    [
        None,
        page(b""),
        page(b"not json"),
        page(b"[" * 100_000),
        page(b"\xff"),
        page(b"{}", status=500),
        page(b'{"page_size":"x","total_slots":"x","model_id":1,"version":2,"data":{}}'),
    ],
)
def test_broken_pages_say_nothing(broken: Page | None) -> None:
    assert facts.vllm_cache(broken) == UNKNOWN_CACHE
    assert facts.sglang_cache(broken) == UNKNOWN_CACHE
    assert facts.llamacpp_cache(broken) == UNKNOWN_CACHE
    assert not facts.is_sglang(broken)
    assert not facts.is_llamacpp(broken)
    assert not facts.is_tgi(broken)
    assert not facts.has_version(broken)
    assert broken is None or broken.read(ModelList) is None


def test_model_list() -> None:
    status, body = model_list("base", "lora-1", "base", "", owner="vllm", length=4096)
    models = Page("/v1/models", status, body).read(ModelList)
    assert models is not None
    assert models.ids == ("base", "lora-1")
    assert models.kind is EngineKind.VLLM
    assert models.lengths["lora-1"] == 4096


def test_an_unsigned_model_list() -> None:
    models = page(b'{"data":[{"id":"m"},{"id":"n","owned_by":"me"}]}').read(ModelList)
    assert models is not None
    assert models.kind is None
    assert models.lengths == {}
