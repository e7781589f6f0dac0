from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.fleet.address import Address
from gateway.fleet.detect import detect
from gateway.fleet.facts import EngineFacts
from gateway.fleet.page import MAX_BYTES, NoPage, PageReader
from gateway.types import EngineKind
from tests.fleet import engine as engines
from tests.fleet.engine import FakeEngine, Pages, engine, model_list, ok

SHORT = 0.2


async def look(fake: FakeEngine, kind: EngineKind | None = None) -> EngineFacts:
    return await detect(PageReader(Address.parse(fake.url), SHORT), kind)


def detected(
    pages: Pages, kind: EngineKind | None = None, **knobs: Any
) -> tuple[EngineFacts, list[str]]:
    async def main() -> tuple[EngineFacts, list[str]]:
        async with engine(pages) as fake:
            for name, value in knobs.items():
                setattr(fake, name, value)
            return await look(fake, kind), fake.asked

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("pages", "kind", "health", "capacity", "block_size"),
    [
        (engines.vllm(), EngineKind.VLLM, "/health", 16_000, 16),
        (engines.sglang(), EngineKind.SGLANG, "/ready", 50_000, 64),
        (engines.llamacpp(), EngineKind.LLAMACPP, "/health", 8192, None),
        (engines.trtllm(), EngineKind.TRTLLM, "/health", None, None),
        (engines.tgi(), EngineKind.TGI, "/health", None, None),
        (engines.ollama(), EngineKind.OLLAMA, "/api/version", None, None),
        ({"/v1/models": model_list("m", owner="x")}, EngineKind.OPENAI, "/v1/models", None, None),
    ],
    ids=lambda value: str(value) if isinstance(value, EngineKind) else "",
)
def test_each_kind(
    pages: Pages, kind: EngineKind, health: str, capacity: int | None, block_size: int | None
) -> None:
    facts, _ = detected(pages)
    assert facts.kind is kind
    assert facts.health_path == health
    assert facts.models
    assert (facts.capacity_tokens, facts.block_size) == (capacity, block_size)


@pytest.mark.parametrize(
    ("pages", "version"),
    [
        (engines.vllm(), "0.33.0"),
        (engines.vllm() | {"/version": ok({"version": 33})}, ""),
        (engines.sglang(), "0.5.23"),
        (engines.trtllm(), ""),
    ],
)
def test_versions(pages: Pages, version: str) -> None:
    facts, _ = detected(pages)
    assert facts.version == version


def test_the_type_of_the_cache() -> None:
    pages = engines.sglang()
    pages["/server_info"] = ok({"page_size": 64, "kv_cache_dtype": "fp8_e5m2"})
    assert detected(pages)[0].cache_dtype == "fp8_e5m2"


def test_the_size_of_a_chunk() -> None:
    pages = engines.sglang()
    pages["/server_info"] = ok({"page_size": 64, "chunked_prefill_size": 4096})
    assert detected(pages)[0].chunk_tokens == 4096


def test_lengths_of_each_model() -> None:
    facts, _ = detected(engines.vllm("base", "lora"))
    assert facts.models == ("base", "lora")
    assert facts.max_model_len == {"base": 4096, "lora": 4096}


@pytest.mark.parametrize("make", [engines.sglang, engines.llamacpp, engines.vllm])
def test_unsigned_lists_are_told_by_other_pages(make: Any) -> None:
    pages = make()
    kind = detected(pages)[0].kind
    pages["/v1/models"] = (401, b'{"error":"Unauthorized"}')
    facts, _ = detected(pages)
    assert facts.kind is kind
    assert facts.models is None


def test_metrics_of_an_unknown_engine_are_left_alone() -> None:
    """TensorRT-LLM's /metrics is drained by whoever reads it."""
    pages = engines.trtllm()
    assert "/metrics" not in detected(pages)[1]
    pages["/v1/models"] = model_list("m", owner="somebody")
    assert "/metrics" not in detected(pages)[1]


def test_older_pages() -> None:
    pages = engines.sglang()
    del pages["/ready"]
    pages["/get_server_info"] = pages.pop("/server_info")
    facts, _ = detected(pages)
    assert (facts.health_path, facts.capacity_tokens) == ("/health", 50_000)


def test_a_configured_kind_is_not_guessed_at() -> None:
    pages = engines.vllm()
    pages["/v1/models"] = model_list("m", owner="somebody")
    facts, asked = detected(pages, EngineKind.VLLM)
    assert facts.capacity_tokens == 16_000
    assert sorted(asked) == ["/health", "/metrics", "/v1/models", "/version"]


@pytest.mark.parametrize("knob", ["hanging", "trickling"])
def test_a_slow_page_costs_its_facts_only(knob: str) -> None:
    facts, _ = detected(engines.vllm(), **{knob: {"/metrics"}})
    assert facts.kind is EngineKind.VLLM
    assert facts.capacity_tokens is None
    facts, _ = detected(engines.vllm(), EngineKind.VLLM, **{knob: {"/v1/models"}})
    assert facts.models is None
    assert facts.capacity_tokens == 16_000


def test_an_endless_page_is_cut() -> None:
    pages = engines.vllm()
    pages["/metrics"] = ok(b"#" * (MAX_BYTES + 1))
    assert detected(pages)[0].capacity_tokens is None


def failure(pages: Pages, **knobs: Any) -> NoPage:
    with pytest.raises(NoPage) as caught:
        detected(pages, **knobs)
    return caught.value


def test_what_stands_in_the_way() -> None:
    hangs = failure(engines.vllm(), hanging={"/v1/models"})
    assert str(hangs) == "GET /v1/models: no answer within 0.2 s"
    assert not hangs.refused
    nowhere = failure({})
    assert str(nowhere) == "the address leads nowhere: none of /health, /v1/models is below it"
    assert not nowhere.refused


def test_nothing_listens() -> None:
    async def main() -> NoPage:
        async with engine({}) as fake:
            pass
        with pytest.raises(NoPage) as caught:
            await look(fake)
        return caught.value

    gone = asyncio.run(main())
    assert gone.refused
    assert str(gone) == "GET /v1/models: connection refused"


@pytest.mark.parametrize("said", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9"])
def test_no_http(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async def main() -> NoPage:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            fake = FakeEngine({})
            fake.port = server.sockets[0].getsockname()[1]
            with pytest.raises(NoPage) as caught:
                await look(fake)
            return caught.value

    broken = asyncio.run(main())
    assert not broken.refused
    assert str(broken).startswith("GET /v1/models: ")
    assert "127.0.0.1" not in str(broken)


def test_a_url_that_ends_in_v1_is_told_so() -> None:
    async def main() -> str:
        async with engine(engines.vllm()) as fake:
            address = Address.parse(f"{fake.url}/v1")
            with pytest.raises(NoPage) as caught:
                await detect(PageReader(address, SHORT))
            return str(caught.value)

    cause = asyncio.run(main())
    assert cause.startswith("the address leads nowhere: none of /health, /v1/models is below it")
    assert cause.endswith("without the /v1 of its API")


def test_adapters() -> None:
    pages = engines.sglang()
    card = {"id": "base", "owned_by": "sglang"}
    pages["/v1/models"] = ok({"data": [card, card | {"id": "lora", "parent": "base"}]})
    facts, _ = detected(pages)
    assert facts.models == ("base", "lora", "base:lora")
    assert facts.adapters == {"lora": "base"}
