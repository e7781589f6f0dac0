"""Compressed request bodies made plain, without ever holding more than is allowed.

Most engines do not read them, and the prompt inside must be read here: they go on plain.
"""

from __future__ import annotations

import zlib

from gateway.http.errors import Malformed, TooLarge, UnsupportedCoding

CODINGS = (b"gzip", b"x-gzip", b"deflate", b"identity")
MAX_RATIO = 200
"""Times its size that a body may grow. Text seldom reaches 20."""
ALWAYS = 1024 * 1024
"""Bytes that a body may grow to whatever its ratio."""
MAX_MEMBERS = 1000
"""Of a gzip file, each of which costs time whatever is in it."""

_STEP = 64 * 1024
_GZIP, _ZLIB, _RAW = 31, 15, -15


def check_coding(coding: bytes) -> None:
    """Args:
        coding: the value of Content-Encoding.

    Raises:
        UnsupportedCoding: it is none of `CODINGS`, or more than one.
    """
    if coding.lower() not in CODINGS:
        shown = coding[:50].decode("latin-1")
        raise UnsupportedCoding(
            f"Content-Encoding is {shown!r}; it must be gzip, deflate or identity.",
            code="unsupported_content_encoding",
            param="content-encoding",
        )


def inflate(body: bytes, coding: bytes, limit: int) -> bytes:
    """The plain body.

    Args:
        coding: one of `CODINGS`.
        limit: bytes that it may have.

    Raises:
        TooLarge: it has more, or far more than is plausible for its size.
        Malformed: it is not what `coding` says, or ends too early.
    """
    coding = coding.lower()
    if coding == b"identity" or not body:
        return body
    plausible = max(ALWAYS, MAX_RATIO * len(body))
    most = min(limit, plausible)
    bits = _GZIP if coding.endswith(b"gzip") else _ZLIB if _has_zlib_head(body) else _RAW
    view = memoryview(body)
    parts: list[bytes] = []
    size = at = 0
    for _ in range(MAX_MEMBERS):
        decoder = zlib.decompressobj(bits)
        pending = b""
        while not decoder.eof:
            if not pending:
                pending = bytes(view[at : at + _STEP])
                at += len(pending)
                if not pending:
                    raise _broken("it ends too early")
            try:
                part = decoder.decompress(pending, _STEP)
            except zlib.error:
                raise _broken("it is not what its Content-Encoding says") from None
            pending = decoder.unconsumed_tail
            parts.append(part)
            size += len(part)
            if size > most:
                raise _too_large(limit, plausible)
        at -= len(decoder.unused_data)
        if at == len(body):
            return b"".join(parts)
        if bits != _GZIP:
            raise _broken("something follows it")
    raise _broken(f"it has more than {MAX_MEMBERS} members")


def _has_zlib_head(body: bytes) -> bool:
    """RFC 1950 has one, and some clients leave it out."""
    return len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0


def _broken(why: str) -> Malformed:
    return Malformed(
        f"The compressed request body cannot be read: {why}.", code="invalid_content_encoding"
    )


def _too_large(limit: int, plausible: int) -> TooLarge:
    if limit <= plausible:
        why = f"it has more than the {limit} bytes that are allowed"
    else:
        why = f"it grows to more than {MAX_RATIO} times its size"
    return TooLarge(f"The request body is too large decompressed: {why}.", code="body_too_large")
