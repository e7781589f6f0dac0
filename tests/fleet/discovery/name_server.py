"""A name server on 127.0.0.1, over UDP and TCP at one port."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset


class FakeNameServer:
    """A context manager.

    Attributes:
        records: by (name, type), what the record data are as in a zone file. A name that is in no
            key does not exist; a type without records at a name that exists has no data.
        rcode: answered instead, when it is not NOERROR.
        silent: nothing is answered.
        garbage: what is answered is no message.
        truncates: answers over UDP say "ask again over TCP".
        asked: (transport, name, type), in order.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcode = dns.rcode.NOERROR
        self.silent = False
        self.garbage = False
        self.truncates = False
        self.asked: list[tuple[str, str, str]] = []
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeNameServer:
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._tcp.sockets[0].getsockname()[1]
        where = ("127.0.0.1", self.port)
        self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), where)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._udp.close()
        self._tcp.close()

    def answer(self, question: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(question)
        [asked] = query.question
        name, kind = asked.name.to_text(), dns.rdatatype.to_text(asked.rdtype)
        self.asked.append((transport, name, kind))
        if self.silent:
            return None
        if self.garbage:
            return question[:2] + b"\xff" * 30
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        reply.set_rcode(self.rcode)
        if self.rcode == dns.rcode.NOERROR:
            found = self.records.get((name, kind))
            if self.truncates and transport == "udp":
                reply.flags |= dns.flags.TC
            elif found:
                reply.answer.append(dns.rrset.from_text(asked.name, 1, "IN", kind, *found))
            elif not any(known == name for known, _ in self.records):
                reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        reply = self.answer(await reader.readexactly(length), "tcp")
        if reply is not None:
            writer.write(struct.pack("!H", len(reply)) + reply)
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: FakeNameServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._server.answer(data, "udp")
        if reply is not None:
            self._transport.sendto(reply, addr)
