"""Which backend keeps which response: bounded, for a time, and learnt as the answers pass."""

from __future__ import annotations

import json

import pytest

from gateway.config import Stored
from gateway.http.owners import LocalOwners, Owner, named_in
from gateway.http.stored import StoredScanner, stored_id

X = Owner("x")


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_latest_are_kept() -> None:
    owners = LocalOwners(Stored(max_ids=2), Time())
    for id in ("a", "b", "a", "c"):
        owners.note(id, Owner(f"at-{id}"))
    assert [owners.find(id) for id in "abc"] == [Owner("at-a"), None, Owner("at-c")]
    assert len(owners) == 2


def test_they_are_forgotten_after_a_time() -> None:
    time = Time()
    owners = LocalOwners(Stored(ttl=10.0), time)
    owners.note("a", X)
    time.now += 9.0
    assert owners.find("a") == X
    time.now += 1.0
    assert owners.find("a") is None
    assert len(owners) == 0


def test_the_overdue_go_as_others_come() -> None:
    time = Time()
    owners = LocalOwners(Stored(ttl=10.0), time)
    for number in range(10):
        owners.note(f"old-{number}", X)
    time.now += 20.0
    for number in range(10):
        owners.note(f"new-{number}", X)
    assert len(owners) == 10


def test_settings_can_be_replaced() -> None:
    owners = LocalOwners(Stored(), Time())
    for number in range(10):
        owners.note(str(number), X)
    owners.settings = Stored(max_ids=3)
    owners.note("10", X)
    assert len(owners) == 3


@pytest.mark.parametrize(
    ("path", "id"),
    [
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1/responses/resp_1/cancel", "resp_1"),
        ("/v1/responses/resp%5F1/input_items", "resp_1"),
        ("/v1/responses", ""),
        ("/v1/responses/", ""),
        ("/v1/responsesque/resp_1", ""),
    ],
)
def test_paths(path: str, id: str) -> None:
    assert named_in(path) == id


@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b'{"id":"resp_1","object":"response"', "resp_1"),
        (b' { "id" : "resp_1" }', "resp_1"),
        (b'{"output":[{"id":"msg_1"}],"id":"resp_1"}', "resp_1"),
        (b'{"output":[{"id":"msg_1"}],"id"', None),
        (b'{"id":7}', None),
        (b"[]", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_id_of_an_answer(body: bytes, id: str | None) -> None:
    assert stored_id(body) == id


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_the_id_of_a_stream_is_told_once(size: int) -> None:
    events = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_text.delta", "delta": '"response":{"id":"resp_2"}'},
        {"type": "response.completed", "response": {"id": "resp_1", "usage": {"output_tokens": 3}}},
    ]
    stream = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
    told: list[str] = []
    scanner = StoredScanner(told.append)
    for at in range(0, len(stream), size):
        scanner.feed(stream[at : at + size])
    assert told == ["resp_1"]
    assert (scanner.done, scanner.tokens) == (True, 3)


def test_streams_without_an_id_do_no_harm() -> None:
    told: list[str] = []
    scanner = StoredScanner(told.append)
    for data in (b'{"response":3}', b'{"response":', b'{"response":{"id":[1]}}', b"[DONE]"):
        scanner.feed(b"data: %b\n\n" % data)
    assert told == []
    assert scanner.done
