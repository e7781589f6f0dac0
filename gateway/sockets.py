"""Sockets to listen on."""

from __future__ import annotations

import socket
from itertools import chain

BACKLOG = 2048


class CannotListen(Exception):
    """The address cannot be listened on; the message says which one and why."""


def listen(host: str, port: int, options: str, *, shared: bool = False) -> list[socket.socket]:
    """Sockets that listen on every address of a host; port 0 is one free port.

    Args:
        options: what sets the address, for error messages.
        shared: others may listen there that say so too.

    Raises:
        CannotListen: one of them is in use or not ours.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and len(sockets) > 1:  # the same free port for all
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sock.bind(address)
            # That it is in use may show only here.
            sock.listen(BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotListen(
            f"cannot listen on {host} port {port}: {error.strerror or error} ({options})"
        ) from None
    return sockets


def listen_for_each(count: int, host: str, port: int, options: str) -> list[list[socket.socket]]:
    """Sockets for each of several processes, on the same addresses. The kernel deals connections
    out to them evenly.

    Raises:
        CannotListen: as `listen`.
    """
    # Ours would share the port with a stranger's of the same kind, so it is taken alone first.
    alone = listen(host, port, options)
    port = alone[0].getsockname()[1]
    for sock in alone:
        sock.close()
    each: list[list[socket.socket]] = []
    try:
        while len(each) < count:
            each.append(listen(host, port, options, shared=True))
    except CannotListen:
        for sock in chain(*each):
            sock.close()
        raise
    return each


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """Where a socket listens, as people write it."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"
