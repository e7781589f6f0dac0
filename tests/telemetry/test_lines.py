"""Files of lines that several processes write at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.harness.gateway_process import ROOT

WRITER = """
import sys
from gateway.telemetry.lines import LineLog
log = LineLog("test", sys.argv[1], lambda record: record)
print("ready", file=sys.stderr, flush=True)
sys.stdin.read()
for _ in range(40):
    for _ in range(10):
        log.write([sys.argv[2]] * 2000)
    log.flush()
log.close()
"""


def started(path: str, output: int) -> list[subprocess.Popen[bytes]]:
    """Processes that write at the same time."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
        )
        for name in ("one", "two", "three")
    ]
    for each in writers:
        assert each.stderr is not None
        assert each.stderr.readline() == b"ready\n"
    for each in writers:
        assert each.stdin is not None
        each.stdin.close()
    return writers


def ended(writers: list[subprocess.Popen[bytes]]) -> None:
    for each in writers:
        with each:
            assert each.wait(60) == 0


def check(text: bytes) -> None:
    records = [json.loads(line) for line in text.splitlines()]
    assert len(records) == 3 * 400
    assert all(len(set(record)) == 1 and len(record) == 2000 for record in records)


def test_lines_in_one_file_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    writers = started(str(path), subprocess.DEVNULL)
    ended(writers)
    check(path.read_bytes())


def test_lines_in_one_pipe_are_whole() -> None:
    """They are larger than what a pipe takes in one piece."""
    reading, writing = os.pipe()
    writers = started("-", writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    ended(writers)
    check(text)
