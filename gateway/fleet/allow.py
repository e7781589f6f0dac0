"""Where backends may be that are added while the gateway runs.

Whoever may add one makes the gateway connect to it: without a rule, to the metadata service of a
cloud for instance. Names are judged when they are added and once more, by what they resolve to, at
each connection: what a name resolves to can change in between.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.config import ConfigError
from gateway.fleet.address import Address

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

FORBIDDEN: tuple[IPNetwork, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
        *("::/128", "fe80::/10", "fec0::/10", "ff00::/8"),
        # metadata services: AWS, Google, Alibaba, Oracle, Azure
        *("fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32"),
        *("192.0.0.192/32", "168.63.129.16/32"),
    )
)
METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data"}
)

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_ENTRY = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>\d{1,5}|\*))?")


class AddressNotAllowed(OSError):
    """A name resolves to nothing that may be connected to."""


@dataclass(slots=True, frozen=True)
class _Entry:
    """Attributes:
    network: None for a name.
    name: in lower case; begins with "." where any name below it is meant; "" for a network.
    port: None for any.
    """

    network: IPNetwork | None
    name: str
    port: int | None

    def holds(self, address: IPAddress, port: int) -> bool:
        network = self.network
        return network is not None and self.port in (None, port) and address in network

    def names(self, host: str, port: int) -> bool:
        name = self.name
        matches = host.endswith(name) if name.startswith(".") else host == name
        return bool(name) and matches and self.port in (None, port)


class AllowRule:
    """Args:
    entries: as in `admin.allow_backends`; none allows everything that is not forbidden.

    Raises:
        ConfigError: an entry is not of one of the forms.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self.reconfigure(entries)

    def reconfigure(self, entries: Iterable[str]) -> None:
        """Have other entries from now on, also for backends that were added before.

        Raises:
            ConfigError: as above; nothing has changed then.
        """
        self._entries = [_parse(entry) for entry in entries]

    def check(self, address: Address) -> None:
        """Raises:
        ConfigError: no backend may be added there.
        """
        if not self._admits(address):
            raise ConfigError(
                f"backend url {address.url!r}: admin.allow_backends does not allow this address",
                field="url",
            )

    def _admits(self, address: Address) -> bool:
        host, port = address.host.rstrip("."), address.port
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            named = any(entry.names(host, port) for entry in self._entries)
            return named or not (self._entries or host in METADATA_NAMES)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            return False  # one address, one spelling
        return self._allows(ip, port, named=False)

    def _allows(self, ip: IPAddress, port: int, *, named: bool) -> bool:
        """Args:
        named: the address was found under a name that is allowed.
        """
        entries = [entry for entry in self._entries if entry.holds(ip, port)]
        forbidden = [net for net in FORBIDDEN if any(each in net for each in _meanings(ip))]
        if not forbidden:
            return bool(entries) or named or not self._entries
        # A wide network does not mean what lies in it by accident.
        return any(
            entry.network is not None and _within(entry.network, net)
            for entry in entries
            for net in forbidden
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a backend that may be connected to.

        Raises:
            AddressNotAllowed: there is none among them.
            OSError: the name cannot be resolved.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        hosts = list(dict.fromkeys(str(info[4][0]) for info in found))
        named = not _is_ip(host)
        allowed = [
            each for each in hosts if self._allows(ipaddress.ip_address(each), port, named=named)
        ]
        if not allowed:
            raise AddressNotAllowed("admin.allow_backends does not allow the address")
        return allowed


def _meanings(ip: IPAddress) -> list[IPAddress]:
    """An address, and the IPv4 addresses that it may end up at."""
    found: list[IPAddress] = [ip]
    if isinstance(ip, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        teredo = ip.teredo
        inner = (
            ip.ipv4_mapped,
            ip.sixtofour,
            teredo[1] if teredo is not None else None,
            last if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 0xFFFF) else None,
        )
        found += [each for each in inner if each is not None]
    return found


def _within(inner: IPNetwork, outer: IPNetwork) -> bool:
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse(entry: str) -> _Entry:
    match = _ENTRY.fullmatch(entry)
    host = (match["v6"] or match["host"]).lower() if match is not None else entry
    given = match["port"] if match is not None else None
    port = None if given in (None, "*") else int(given)
    try:
        network: IPNetwork | None = ipaddress.ip_network(host)
    except ValueError:
        network = None
    is_name = re.fullmatch(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", host) is not None
    problem = ""
    if network is None and (not is_name or "/" in host or re.search(r"(^|\.)\d+\.?$", host)):
        problem = "is no name, address or network"
    elif given is None and (network is None or "/" not in host):
        problem = "has no port (* is any)"
    elif port is not None and not 1 <= port <= 65_535:
        problem = "has a port that is not one from 1 to 65535"
    if problem:
        raise ConfigError(
            f"admin.allow_backends: {entry!r} {problem} (expected NAME:PORT, *.DOMAIN:PORT,"
            " ADDRESS:PORT, NETWORK or NETWORK:PORT, IPv6 with a port in brackets)",
            field="admin.allow_backends",
        )
    if network is not None:
        return _Entry(network, "", port)
    return _Entry(None, host.removeprefix("*").rstrip("."), port)
