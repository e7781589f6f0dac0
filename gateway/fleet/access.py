"""How a backend is reached: with which key, over which TLS, and at which addresses."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import msgspec

from gateway.config import BackendConfig, BackendTls, ConfigError, SecretRef
from gateway.fleet.address import Address
from gateway.fleet.allow import AllowRule
from gateway.secrets import reveal
from gateway.tls import backend_context


@dataclass(slots=True, frozen=True, repr=False)
class Access:
    """Attributes:
    authorization: value of the header that the backend is sent; b"" when it gets the client's.
    tls: None for plain HTTP.
    server_name: expected in the backend's certificate; "" for the host.
    rule: what a connection is checked against; None where the operator's settings name the
        backend.
    """

    authorization: bytes = b""
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    rule: AllowRule | None = None


OPEN = Access()
"""Plain HTTP, no key."""


class Accesses:
    """Args:
    defaults: TLS of the https backends that have no settings of their own.
    rule: for those that are added while the gateway runs.

    Raises:
        ConfigError: the defaults cannot be used.
    """

    def __init__(self, defaults: BackendTls | None = None, rule: AllowRule | None = None) -> None:
        self._defaults = defaults or BackendTls()
        self._rule = rule or AllowRule()
        self._contexts: dict[BackendTls, ssl.SSLContext] = {}
        if self._defaults != BackendTls():
            self._context(self._defaults, "backend_tls")

    def check(self, address: Address, config: BackendConfig) -> None:
        """Whether somebody who may not read this machine's files and environment may have a
        backend added.

        Raises:
            ConfigError: not this one.
        """
        self._rule.check(address)
        if config.tls is not None:
            raise ConfigError(
                "backend tls: names files of the gateway's machine, expected in its settings only",
                field="tls",
            )
        if isinstance(config.api_key, SecretRef):
            raise ConfigError(
                "backend api_key: env and file are the gateway's own, expected the key itself",
                field="api_key",
            )

    def of(self, address: Address, config: BackendConfig, *, guarded: bool) -> Access:
        """Args:
        guarded: connections are checked against the rule.

        Raises:
            ConfigError: the key or a TLS file cannot be read.
        """
        option = f"backend {address.url}"
        key = config.api_key
        authorization = b""
        if key is not None:
            authorization = b"Bearer " + reveal(key, f"{option}: api_key").encode()
        tls, name = None, ""
        if address.scheme == "https":
            settings = config.tls or self._defaults
            name = settings.server_name or ""
            tls = self._context(settings, "backend_tls" if config.tls is None else f"{option}: tls")
        return Access(authorization, tls, name, self._rule if guarded else None)

    def _context(self, settings: BackendTls, option: str) -> ssl.SSLContext:
        """Backends with the same settings share one: to make one takes many milliseconds."""
        settings = msgspec.structs.replace(settings, server_name=None)
        context = self._contexts.get(settings)
        if context is None:
            context = self._contexts[settings] = backend_context(settings, option)
        return context
