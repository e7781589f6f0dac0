"""Peers whose word is taken on where a request came from, and on whose behalf."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from gateway.config import ConfigError

_MAX_KNOWN = 4096

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peers:
    """Args:
    networks: addresses and networks in CIDR notation.

    Raises:
        ConfigError: one of them is neither.
    """

    def __init__(self, networks: Iterable[str], option: str) -> None:
        self._networks = [_network(text, option) for text in networks]
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[host] = self._holds(host)
        return known

    def _holds(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # A socket that takes both families gives IPv4 peers in IPv6's clothes.
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        address = mapped or address
        return any(address in network for network in self._networks)


def _network(text: str, option: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"{option}: {text!r}: {error} (expected an address or a network such as 10.0.0.0/8)",
            field=option,
        ) from None
