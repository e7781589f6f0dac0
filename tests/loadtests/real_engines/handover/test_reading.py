from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtests.real_engines.handover.reading import Reading, read, told
from tests.harness.fake_backend import FakeBackend

PAGE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 640.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 70.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 640.0
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="length"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort"} 2.0
# TYPE prefixgate_pd_released counter
prefixgate_pd_released_total 3.0
"""


@pytest.fixture
def url() -> Iterator[str]:
    with FakeBackend("m") as engine:
        engine.pages["/metrics"] = PAGE.encode()
        yield engine.url


def test_samples_are_told_apart_by_their_labels(url: str) -> None:
    got = read(url)
    assert (got.running, got.used, got.fetched, got.computed) == (2.0, 0.25, 640, 70)
    assert (got.ended, got.aborted, got.served) == (7, 2, 5)
    assert not got.idle
    assert (told(url).released, told(url).orphaned) == (3, 0)


def test_what_is_as_of_now_stays_when_counts_are_subtracted() -> None:
    since = Reading(used=0.5, cached=300, ended=4).since(Reading(used=0.75, cached=100, ended=1))
    assert since == Reading(used=0.5, cached=200, ended=3)
    assert Reading(cached=1).idle
