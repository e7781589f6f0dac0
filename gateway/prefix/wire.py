"""Numbers and strings as bytes: what records of prefixes are made of."""

from __future__ import annotations

from gateway.shared.records import BadRecord

MAX_BITS = 63
"""A number is below 2 to the power of this."""


def put_number(out: bytearray, number: int) -> None:
    """Append a number of at least 0, seven bits per byte, the low ones first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def put_text(out: bytearray, text: str) -> None:
    data = text.encode()
    put_number(out, len(data))
    out += data


class Reader:
    """Takes a record apart from its beginning to its end.

    Raises, with every method, BadRecord: it ends too soon or says something impossible.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether something is left."""
        return self._at < len(self._data)

    def number(self) -> int:
        data, at = self._data, self._at
        try:
            byte = data[at]
            at += 1
            number = byte & 0x7F
            shift = 7
            while byte > 0x7F:
                byte = data[at]
                at += 1
                number |= (byte & 0x7F) << shift
                shift += 7
                if shift > MAX_BITS:
                    raise BadRecord("a number is too large")
        except IndexError:
            raise BadRecord("ends within a number") from None
        self._at = at
        return number

    def take(self, length: int) -> bytes:
        start = self._at
        self._at = end = start + length
        if end > len(self._data):
            raise BadRecord(f"ends within {length} bytes")
        return self._data[start:end]

    def text(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise BadRecord("a name is not UTF-8") from None

    def end(self) -> None:
        if self.more:
            raise BadRecord(f"{len(self._data) - self._at} bytes too many")
