"""Azure's traces: a CSV of arrivals and lengths, which says nothing about prefixes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import datetime

from loadtests.replay.trace import BadTrace, TraceRequest

HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read(name: str, lines: Iterable[bytes]) -> list[TraceRequest]:
    """
    Raises:
        BadTrace: a line is not what it should be.
    """
    rows = csv.reader(line.decode("utf-8", "replace") for line in lines)
    next(rows)
    requests = []
    begin: datetime | None = None
    for row in rows:
        if not row:
            continue
        number = rows.line_num
        if len(row) != len(HEADER):
            raise BadTrace(name, number, f"{len(row)} fields, expected {', '.join(HEADER)}")
        try:
            time = datetime.fromisoformat(row[0])
        except ValueError:
            raise BadTrace(name, number, f"TIMESTAMP is no date and time: {row[0]!r}") from None
        if begin is None:
            begin = time
        try:
            arrival = (time - begin).total_seconds()
        except TypeError:
            raise BadTrace(name, number, "TIMESTAMP: only some have a time zone") from None
        requests.append(
            TraceRequest(
                arrival=arrival,
                input_tokens=_count(name, number, HEADER[1], row[1], 1),
                output_tokens=_count(name, number, HEADER[2], row[2], 0),
            )
        )
    return requests


def _count(name: str, number: int, field: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise BadTrace(
            name, number, f"{field} must be a whole number from {least} on, got {text!r}"
        )
    return int(text)
