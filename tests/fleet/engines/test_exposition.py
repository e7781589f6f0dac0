from __future__ import annotations

import time
from math import inf

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.fleet.engines.exposition import MAX_SERIES, Exposition
from gateway.fleet.engines.numbers import MAX_COUNT

PAGE = b"""# HELP running x
# TYPE running gauge
running{engine="0",model_name="m"} 3.0
running{engine="1",model_name="m"} 4
running_more{engine="0"} 100
use{engine="0",note="a \\"quoted\\\\ } one, x=1"} 0.25 1700000000000
use{engine="1"} 0.75\r
work_total 1.5e+06
process_start_time_seconds 1.76e+09
"""


def test_ranks_add_up_and_shares_are_averaged() -> None:
    page = Exposition(PAGE)
    assert page.count("running") == 7
    assert page.share("use") == 0.5
    assert page.work("work_total") == 1.5e6
    assert page.started == 1.76e9
    assert page.count("missing") is None
    assert page.share("missing") is None
    assert page.work("missing") is None


def test_the_first_name_that_is_there_counts() -> None:
    page = Exposition(PAGE)
    assert page.count("missing", "running", "running_more") == 7


def test_tensor_parallel_ranks_say_the_same_thing_several_times() -> None:
    page = Exposition(
        b'n{dp_rank="0",tp_rank="0"} 5\nn{dp_rank="0",tp_rank="1"} 5\nn{dp_rank="1",tp_rank="0"} 2'
    )
    assert page.count("n") == 7


def test_labels_are_read_whatever_is_in_them() -> None:
    [(labels, value), _] = Exposition(PAGE).series("use")
    assert labels == {"engine": "0", "note": r"a \"quoted\\ } one, x=1"}
    assert value == 0.25


def test_numbers_that_cannot_be_true() -> None:
    for text in (b"NaN", b"-1", b"+Inf", b"1e300", b"soon", b"", b"0x10", b"1" * 65):
        page = Exposition(b"n " + text + b"\n")
        assert page.count("n") is None, text
        assert page.share("n") is None, text
    for text in (b"NaN", b"-1", b"+Inf", b"1e300"):
        assert Exposition(b"n " + text).work("n") is None
    assert Exposition(b"n 97").share("n") is None
    assert Exposition(b"n 1.0000001").share("n") == 1.0


PIECES = (b"n", b"{", b"}", b'"', b"\\", b"=", b",", b" ", b"\n", b"1", b"e9", b"NaN", b"engine")


@given(
    st.binary(max_size=400)
    | st.lists(st.sampled_from(PIECES), max_size=60).map(lambda parts: b"".join(parts))
)
@example(b'n{engine="\xff"} 1')
def test_any_page_can_be_read(page: bytes) -> None:
    read = Exposition(page)
    count, share, work, started = (read.count("n"), read.share("n"), read.work("n"), read.started)
    assert count is None or 0 <= count <= MAX_COUNT
    assert share is None or 0.0 <= share <= 1.0
    assert work is None or 0.0 <= work < inf
    assert started is None or started > 0.0


def test_hostile_pages_take_no_longer() -> None:
    before = time.process_time()
    size = 4_000_000
    Exposition(b"n{" + b"a" * size).count("n")
    Exposition(b"n{" + b'a="' * size + b"} 1").count("n")
    Exposition(b'n{a="' + b"\\" * size + b"} 1").count("n")
    Exposition(b"n " + b" " * size + b"x").count("n")
    assert Exposition(b'n{engine="0"} 1\n' * size).count("n") == 1
    assert time.process_time() - before < 5.0
    many = b"".join(b'n{engine="%d"} 1\n' % rank for rank in range(3 * MAX_SERIES))
    assert Exposition(many).count("n") == MAX_SERIES
