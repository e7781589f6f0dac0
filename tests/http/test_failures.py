from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from gateway.fleet.upstream import FailureKind
from gateway.http.failures import (
    BROKEN,
    BUSY,
    CLIENT_ERROR,
    ERROR,
    GATEWAY_TIMEOUT,
    UNSUPPORTED,
    Blame,
    Failure,
    Retry,
    may_retry,
    refusal,
    retry_after_seconds,
)
from gateway.types import Outcome


def test_every_way_to_break_has_its_row() -> None:
    assert set(BROKEN) == set(FailureKind)
    for kind, row in BROKEN.items():
        assert row.name == str(kind)
        assert row.status in (502, 504)
        assert (row.status == 504) == (row.outcome is Outcome.TIMEOUT)
        assert row.message


@pytest.mark.parametrize("status", range(100, 600))
def test_every_status_has_its_row(status: int) -> None:
    expected: Failure | None = ERROR if status >= 500 else CLIENT_ERROR if status >= 400 else None
    if status in (429, 503, 529):
        expected = BUSY
    elif status in (501, 505):
        expected = UNSUPPORTED
    elif status == 504:
        expected = GATEWAY_TIMEOUT
    assert refusal(status) is expected


def test_clients_mistakes_are_nobody_elses() -> None:
    assert CLIENT_ERROR.retry is Retry.NEVER
    assert CLIENT_ERROR.blame is Blame.NOBODY
    assert BUSY.blame is Blame.AVOIDED


@pytest.mark.parametrize("row", [*BROKEN.values(), BUSY, ERROR, GATEWAY_TIMEOUT, CLIENT_ERROR])
def test_what_may_change_an_engine_is_repeated_only_when_nothing_was_sent(row: Failure) -> None:
    unsent = row.name in ("connect", "connect_timeout")
    assert may_retry(row, inference=False, after_timeout=True) is unsent


@pytest.mark.parametrize("name", ["first_byte_timeout", "gateway_timeout"])
def test_long_waits_are_repeated_only_where_that_is_set(name: str) -> None:
    [row] = [row for row in (*BROKEN.values(), GATEWAY_TIMEOUT) if row.name == name]
    assert not may_retry(row, inference=True, after_timeout=False)
    assert may_retry(row, inference=True, after_timeout=True)


@pytest.mark.parametrize("name", ["idle_timeout", "total_timeout"])
def test_what_was_under_way_is_never_repeated(name: str) -> None:
    assert not may_retry(BROKEN[FailureKind(name)], inference=True, after_timeout=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"0", 0.0), (b" 7 ", 7.0), (b"9" * 400, 999_999_999.0)]
    + [(bad, None) for bad in (b"", b"soon", b"-1", b"1.5", b"\xb2", b"Wed, 99 Foo")],
)
def test_retry_after(value: bytes, seconds: float | None) -> None:
    assert retry_after_seconds(value) == seconds


def test_retry_after_as_a_date() -> None:
    later = formatdate(time.time() + 30.0, usegmt=True).encode()
    seconds = retry_after_seconds(later)
    assert seconds is not None
    assert 25.0 < seconds <= 30.0
    assert retry_after_seconds(b"Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
