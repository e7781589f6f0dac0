from __future__ import annotations

import base64
import json
import struct

import msgspec
import pytest

from gateway.config import ConfigError
from gateway.telemetry.access import AccessLine
from gateway.types import Priority
from loadtests.replay.access_log import Line, read
from loadtests.replay.trace import BadTrace


def chain(*blocks: int) -> str:
    return base64.b64encode(struct.pack(f"<{len(blocks)}Q", *blocks)).decode()


GOOD = {
    "time": 1000.0,
    "prompt_bytes": 400,
    "output_tokens": 20,
    "outcome": "ok",
    "chain": chain(1, 2, 3),
    "something": "else",
}


def lines(*changes: dict[str, object]) -> list[bytes]:
    return [json.dumps(GOOD | change).encode() for change in changes]


def test_lines_come_in_order_of_arrival_not_of_end() -> None:
    log = read("t", lines({"time": 1002.5}, {"prompt_bytes": 1200}))
    assert [(r.arrival, r.nominal_tokens) for r in log.requests] == [(0, 300), (2.5, 100)]
    assert log.requests[0].blocks == (1, 2, 3)
    assert log.requests[0].output_tokens == 20


def test_the_engines_own_count_goes_where_it_is_known() -> None:
    log = read(
        "t",
        lines(
            {"reported_prompt_tokens": 150},
            {"time": 1001.0, "reported_prompt_tokens": None, "prompt_bytes": 800},
        ),
    )
    assert log.token_ratio == 1.5
    assert [r.input_tokens for r in log.requests] == [150, 300]
    assert [r.nominal_tokens for r in log.requests] == [100, 200]


def test_a_prompt_is_not_shorter_than_its_blocks() -> None:
    [found] = read("t", lines({"prompt_bytes": 320})).requests
    assert found.nominal_tokens == 96


def test_what_no_engine_served_is_left_out_and_counted() -> None:
    log = read(
        "t",
        lines(
            {"outcome": "rejected", "output_tokens": 0},
            {"prompt_bytes": 0, "chain": None},
            {"outcome": "cancelled", "output_tokens": 5},
            {"output_tokens": 0},
        ),
    )
    assert len(log.requests) == 2
    assert log.left_out == 2


def test_what_is_known_of_tenant_priority_and_limit_is_kept() -> None:
    known = {"tenant": "a", "session": "s", "priority": "low", "max_tokens": 64}
    [found] = read("t", lines(known)).requests
    assert (found.tenant, found.session) == ("a", "s")
    assert (found.priority, found.max_tokens) == (Priority.LOW, 64)


def test_a_log_without_chains_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"^access\.log: no line has a `chain`"):
        read("access.log", lines({"chain": None}, {"chain": None}))
    assert read("t", lines({"chain": None}, {})).requests[0].blocks == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chain": "abc"}, "chain"),
        ({"chain": base64.b64encode(b"1234567").decode()}, "chain"),
        ({"chain": 5}, "chain"),
        ({"time": "noon"}, "time"),
        ({"prompt_bytes": -1}, "prompt_bytes"),
        ({"priority": "top"}, "priority"),
    ],
)
def test_a_bad_line_is_named_with_its_field(change: dict[str, object], problem: str) -> None:
    with pytest.raises(BadTrace, match=rf"^a\.log, line 2: .*{problem}"):
        read("a.log", [*lines({}), *lines(change)])


def test_the_members_read_are_those_that_the_gateway_writes() -> None:
    written = {field.name: field for field in msgspec.structs.fields(AccessLine)}
    assert {field.name for field in msgspec.structs.fields(Line)} <= set(written)
