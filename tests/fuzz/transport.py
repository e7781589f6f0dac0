"""A transport that keeps what is written to it."""

from __future__ import annotations

import asyncio
from typing import Any


class KeptTransport(asyncio.Transport):
    """Attributes:
    written: so far.
    ended: our side is closed.
    lost: both are, and the protocol was told.
    """

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.written = bytearray()
        self.ended = False
        self.lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        if not self.ended:
            self.written += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.lost

    def close(self) -> None:
        self.ended = True
        if not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close
