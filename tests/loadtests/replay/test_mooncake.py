from __future__ import annotations

import json

import pytest

from loadtests.replay.mooncake import read
from loadtests.replay.trace import BadTrace

GOOD = {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]}


def lines(*changes: dict[str, object]) -> list[bytes]:
    return [json.dumps(GOOD | change).encode() for change in changes]


def test_a_line_is_a_request_with_its_whole_blocks() -> None:
    [found] = read("t", lines({}))
    assert (found.arrival, found.input_tokens, found.output_tokens) == (1.5, 1100, 7)
    assert found.blocks == (4, 5)


def test_a_last_block_may_be_whole_or_missing() -> None:
    whole, missing = read("t", lines({"input_length": 1536}, {"hash_ids": [4, 5]}))
    assert whole.blocks == (4, 5, 6)
    assert missing.blocks == (4, 5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input_length": 0}, "input_length"),
        ({"input_length": "many"}, "input_length"),
        ({"output_length": -1}, "output_length"),
        ({"timestamp": 1.5}, "timestamp"),
        ({"hash_ids": [1]}, "hash_ids"),
        ({"hash_ids": [1, 2, 3, 4]}, "hash_ids"),
        ({"hash_ids": [1, -2, 3]}, "hash_ids"),
        ({"hash_ids": [1, 2**64, 3]}, "hash_ids"),
    ],
)
def test_a_bad_line_is_named_with_its_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(BadTrace, match=rf"^trace\.jsonl, line 3: .*{field}"):
        read("trace.jsonl", [*lines({}), b"", *lines(change)])


def test_what_is_no_json_is_named_too() -> None:
    with pytest.raises(BadTrace, match="line 1"):
        read("t", [b"{"])
