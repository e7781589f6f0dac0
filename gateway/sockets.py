"""Sockets to listen on."""

from __future__ import annotations

import socket

BACKLOG = 2048


class CannotListen(Exception):
    """The address cannot be listened on; the message says which one and why."""


def listen(host: str, port: int, options: str) -> list[socket.socket]:
    """Sockets that listen on every address of a host; port 0 is one free port.

    Args:
        options: what sets the address, for error messages.

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


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """Where a socket listens, as people write it."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"
