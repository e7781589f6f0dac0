from __future__ import annotations

import base64
import logging
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields

from gateway.telemetry.access import AccessLine, AccessLog
from gateway.telemetry.digest import digest
from gateway.telemetry.lines import MAX_MODEL
from gateway.telemetry.record import RequestRecord
from gateway.types import Outcome
from tests.telemetry.records import refused, routed


def lines(path: Path) -> list[Any]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_a_routed_request_becomes_one_line(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.write(routed(reported_prompt_tokens=900, reported_cached_tokens=700, tpot=1 / 90))
    log.close()
    assert lines(path) == [
        {
            "time": 1_800_000_000.25,
            "id": "r-1",
            "client_id": "the-clients-own",
            "model": "served",
            "dialect": "openai-chat",
            "stream": True,
            "status": 200,
            "outcome": "ok",
            "backend": "b1",
            "tenant": digest("a key's digest"),
            "key": "team",
            "session": digest("s-1"),
            "priority": "high",
            "work_class": "decode",
            "reason": "prefix",
            "spill": None,
            "placement": None,
            "placement_reason": None,
            "fallback": None,
            "prefill_backend": None,
            "prefill_leg_seconds": None,
            "refusal": None,
            "disconnect_phase": None,
            "prompt_bytes": 4200,
            "prompt_tokens": 1000,
            "matched_tokens": 800,
            "uncached_tokens": 200,
            "output_tokens": 100,
            "max_tokens": 256,
            "reported_prompt_tokens": 900,
            "reported_cached_tokens": 700,
            "queue_seconds": 0.02,
            "ttft": 0.12,
            "tpot": 0.011111,
            "duration": 1.5,
            "chain": None,
        }
    ]


def test_a_chain_is_in_the_line_where_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    chain = struct.pack("<2Q", 1, 2**64 - 1)
    log.write(routed(chain=chain))
    log.close()
    [line] = lines(path)
    assert base64.b64decode(line["chain"]) == chain


def test_neither_tenant_nor_session_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.write(routed(tenant="someone@example.com", session="her-session"))
    log.close()
    assert b"someone" not in path.read_bytes()
    assert b"her-session" not in path.read_bytes()


def test_what_never_came_is_null(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.write(refused())
    log.close()
    [line] = lines(path)
    assert line["refusal"] == "queue_full"
    assert line["outcome"] == "rejected"
    assert line["tenant"] is line["session"] is line["chain"] is None
    assert line["backend"] is line["reason"] is line["ttft"] is line["tpot"] is None


def test_everything_recorded_is_in_the_line() -> None:
    recorded = {field.name for field in fields(RequestRecord)}
    # `time` is the arrival, `arrived` means something on the gateway's own clock only, and whether
    # there was a key shows in the matched tokens.
    assert set(AccessLine.__struct_fields__) - {"time"} == recorded - {
        "arrived",
        "arrived_unix",
        "keyed",
    }


def test_text_from_clients_stays_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.write(routed(model='a\n{"b' + "x" * 10_000))
    log.close()
    [line] = lines(path)
    assert line["model"].startswith('a\n{"b')
    assert len(line["model"]) == MAX_MODEL


def test_order_is_kept_over_many_batches_and_the_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text('{"id":"before"}\n')
    log = AccessLog(str(path))
    for number in range(3000):
        log.write(routed(id=str(number)))
    log.close()
    assert [line["id"] for line in lines(path)] == ["before", *map(str, range(3000))]


def test_the_thread_writes_everything_before_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.start()
    for number in range(100):
        log.write(routed(id=str(number)))
    log.close()
    assert len(lines(path)) == 100


def test_a_full_buffer_drops_and_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), max_waiting=10)
    for number in range(25):
        log.write(routed(id=str(number)))
    assert log.dropped == 15
    with caplog.at_level(logging.WARNING, "prefixgate.access"):
        log.flush()
        log.flush()
    assert [record.getMessage() for record in caplog.records] == ["access log: 15 lines dropped"]
    log.write(routed(id="next"))
    log.close()
    assert [line["id"] for line in lines(path)] == [*map(str, range(10)), "next"]


def test_rotation(tmp_path: Path) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    log = AccessLog(str(path))
    log.write(routed(id="1"))
    log.flush()
    path.rename(old)
    log.write(routed(id="2"))
    log.flush()
    log.reopen()
    log.write(routed(id="3"))
    log.close()
    assert [line["id"] for line in lines(old)] == ["1", "2"]
    assert [line["id"] for line in lines(path)] == ["3"]


def test_a_rotation_that_fails_keeps_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "access.log"
    log = AccessLog(str(path))
    log.open()
    moved = folder.rename(tmp_path / "moved")
    log.reopen()
    log.write(routed())
    log.close()
    assert "cannot be reopened" in caplog.text
    assert len(lines(moved / "access.log")) == 1


def test_a_file_that_cannot_be_opened_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AccessLog(str(tmp_path / "missing" / "access.log"))


def test_a_full_disk_costs_lines_and_no_exception(caplog: pytest.LogCaptureFixture) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    log = AccessLog("/dev/full")
    log.write(routed(outcome=Outcome.OK))
    log.close()
    assert log.dropped == 1
    assert "cannot be written" in caplog.text


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    log = AccessLog("-")
    log.write(routed())
    log.reopen()
    log.close()
    os.write(1, b"still open\n")
    first, second = capfd.readouterr().out.splitlines()
    assert msgspec.json.decode(first)["id"] == "r-1"
    assert second == "still open"


def test_a_pipe_that_nobody_reads_does_not_keep_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.telemetry.lines.CLOSE_SECONDS", 0.3)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = AccessLog(str(path))
        log.start()
        for number in range(2000):
            log.write(routed(id=str(number)))
        log.close()
        assert "does not take its last lines" in caplog.text
    finally:
        os.close(reader)
