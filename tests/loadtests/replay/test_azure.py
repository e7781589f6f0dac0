from __future__ import annotations

import pytest

from loadtests.replay.azure import read
from loadtests.replay.trace import BadTrace

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


def test_rows_are_requests_without_blocks() -> None:
    first, second = read(
        "t",
        [
            HEADER,
            b"2023-11-16 18:15:46.6805900,374,44",
            b"2023-11-16 18:15:50.9951690,396,0",
            b"",
        ],
    )
    assert (first.arrival, first.input_tokens, first.output_tokens) == (0, 374, 44)
    assert second.arrival == pytest.approx(4.314579)
    assert second.output_tokens == 0
    assert second.blocks == ()


def test_time_zones_are_taken_in() -> None:
    _, second = read(
        "t",
        [HEADER, b"2024-05-10 00:00:00.009930+00:00,1,1", b"2024-05-10 02:00:01.009930+02:00,1,1"],
    )
    assert second.arrival == pytest.approx(1)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"yesterday,1,1", "TIMESTAMP"),
        (b"2023-11-16 18:15:47+00:00,1,1", "time zone"),
        (b"2023-11-16 18:15:47,0,1", "ContextTokens.*'0'"),
        (b"2023-11-16 18:15:47,1,-1", "GeneratedTokens.*'-1'"),
        (b"2023-11-16 18:15:47,1,", "GeneratedTokens"),
        (b"2023-11-16 18:15:47,1", "2 fields"),
    ],
)
def test_a_bad_row_is_named_with_its_field(row: bytes, problem: str) -> None:
    with pytest.raises(BadTrace, match=rf"^a\.csv, line 3: .*{problem}"):
        read("a.csv", [HEADER, b"2023-11-16 18:15:46,1,1", row])
