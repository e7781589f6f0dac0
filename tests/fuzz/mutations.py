"""Bytes that are nearly right, and ways to cut them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

INTERESTING = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"0",
        b"-1",
        b"\xff",
    ),
    *(b"transfer-encoding: chunked\r\n", b"content-length: 5\r\n", b"content-length: 99\r\n"),
    *(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"connection: close\r\n", b"upgrade: h2c\r\n"),
    *(b"expect: 100-continue\r\n", b"HTTP/1.0", b"connection: upgrade\r\n", b"0\r\n\r\n"),
)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Some of it left out, put in or said twice."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        between = draw(st.one_of(st.just(b""), st.sampled_from(INTERESTING), st.binary(max_size=4)))
        again = data[at:end] if draw(st.booleans()) else b""
        data = data[:at] + between + again + data[end:]
    return data


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes, cut anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]
