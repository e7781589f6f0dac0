"""Via (RFC 9110, 7.6.3): by it a gateway knows a request that it has sent itself."""

from __future__ import annotations

from gateway.http.errors import LoopDetected


class Via:
    """Args:
    name: this process's, which no other has but the workers beside it.
    """

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._line = b"via: 1.1 %b\r\n" % name

    def line(self, received: bytes) -> bytes:
        """The header line for the backend.

        Args:
            received: the client's value, b"" when it sent none.

        Raises:
            LoopDetected: the request has been here before.
        """
        if not received:
            return self._line
        if self._name in received:
            raise LoopDetected
        return b"via: %b, 1.1 %b\r\n" % (received, self._name)
