from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from gateway.config import ConfigError
from gateway.prefix.blocks import BlockScale
from gateway.telemetry.access import AccessLog
from loadtests.replay import source
from tests.telemetry.records import refused, routed

MOONCAKE = b"".join(
    json.dumps({"timestamp": t, "input_length": 512, "output_length": 1, "hash_ids": [n]}).encode()
    + b"\n"
    for n, t in enumerate([3000, 0, 6000])
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
LOG = (
    b'{"time": 5.0, "prompt_bytes": 160, "output_tokens": 3, "outcome": "ok",'
    b' "chain": "AQAAAAAAAAA="}\n'
    b'{"time": 6.0, "prompt_bytes": 160, "output_tokens": 0, "outcome": "rejected"}\n'
)


def file(folder: Path, data: bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_formats_are_told_by_their_content(tmp_path: Path) -> None:
    mooncake = source.read(file(tmp_path, b"\n" + MOONCAKE))
    assert (mooncake.block_tokens, mooncake.window, len(mooncake.requests)) == (512, 3.0, 3)
    assert [request.blocks for request in mooncake.requests] == [(1,), (0,), (2,)]
    assert any("batches of 3 s" in note for note in mooncake.notes)
    azure = source.read(file(tmp_path, AZURE))
    assert len(azure.requests) == 1
    assert any("no prefixes" in note for note in azure.notes)
    assert source.read(file(tmp_path, b"\xef\xbb\xbf" + AZURE)).requests == azure.requests
    log = source.read(file(tmp_path, LOG))
    assert log.block_tokens is None
    assert any("1 requests" in note for note in log.notes)


def test_a_packed_file_is_the_same_trace_but_for_its_digest(tmp_path: Path) -> None:
    plain = source.read(file(tmp_path, MOONCAKE, "t"))
    data = gzip.compress(MOONCAKE)
    packed = source.read(file(tmp_path, data, "t.gz"))
    assert packed.requests == plain.requests
    assert packed.digest == hashlib.sha256(data).hexdigest()
    assert plain.digest == hashlib.sha256(MOONCAKE).hexdigest()


def test_a_found_file_gives_one_trace_per_seed(tmp_path: Path) -> None:
    found = source.find(str(file(tmp_path, MOONCAKE)))
    assert found(1) == found(1)
    assert found(1) != found(2)
    assert found(1).digest == found(2).digest


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: No such file"):
        source.find(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="not a known trace"):
        source.find(str(file(tmp_path, b"hello\n")))
    with pytest.raises(ConfigError, match="not a known trace"):
        source.find(str(file(tmp_path, b"")))
    with pytest.raises(ConfigError, match="gzip"):
        source.find(str(file(tmp_path, gzip.compress(MOONCAKE)[:-9])))


def test_generators_are_found_by_name() -> None:
    assert source.find("gen:chat?seconds=60")(1).name == "gen:chat?seconds=60"


def test_what_the_gateway_logs_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    chain = BlockScale().chain(b"model", b"x" * 4000)
    log.write(routed(chain=chain, prompt_bytes=4000, reported_prompt_tokens=1100))
    log.write(refused())
    log.close()
    trace = source.read(path)
    [request] = trace.requests
    assert request.chain == chain
    assert (request.input_tokens, request.output_tokens) == (1100, 100)
    assert trace.token_ratio == pytest.approx(1.1)
    assert len(trace.units(request)) == int(BlockScale().tokens(len(chain) // 8) * 1.1) // 32
