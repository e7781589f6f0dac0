"""Backends from the addresses of a name in the DNS."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import AsyncGenerator

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.resolver

from gateway.config import ConfigError, DnsSource, name_server
from gateway.fleet.backend import Source
from gateway.fleet.discovery.feed import FeedFailure, Listing, at
from gateway.types import Clock

MAX_TARGETS = 256
"""Of an SRV record set."""

Endpoint = tuple[str, int]


class DnsFeed:
    """That a name is not there, or has no records of the type, is an answer: an empty list, in
    which its addresses stay for as long as any that is missing. Anything else is a failure.

    Raises:
        ConfigError: the host is not a name.
    """

    source = Source.DNS

    def __init__(self, settings: DnsSource, clock: Clock) -> None:
        self.name = settings.name
        self.patience = settings.interval
        self.settings = settings
        self._clock = clock
        self._missing: dict[Endpoint, float | None] = {}
        """Endpoints that are listed, with the time since when answers do not have them."""
        try:
            self._host = dns.name.from_text(settings.host, None)
        except (dns.exception.DNSException, UnicodeError) as error:
            raise ConfigError(
                f"discovery.dns: host: {settings.host!r} is not a name: {error}",
                field="discovery.dns.host",
            ) from None

    async def lists(self) -> AsyncGenerator[Listing, None]:
        while True:
            self._note(await self._resolve())
            urls = [self._url(endpoint) for endpoint in sorted(self._missing)]
            yield Listing(tuple(at(url, self.settings.backend) for url in urls))
            # Replicas that were started together need not ask together.
            await asyncio.sleep(self.settings.interval * random.uniform(0.9, 1.1))

    def _note(self, found: set[Endpoint]) -> None:
        now = self._clock()
        for endpoint in found:
            self._missing[endpoint] = None
        for endpoint, since in tuple(self._missing.items()):
            if endpoint not in found:
                since = self._missing[endpoint] = now if since is None else since
                if now - since >= self.settings.hold:
                    del self._missing[endpoint]

    def _url(self, endpoint: Endpoint) -> str:
        host, port = endpoint
        name = f"[{host}]" if ":" in host else host
        return f"{self.settings.scheme}://{name}:{port}"

    async def _resolve(self) -> set[Endpoint]:
        """Raises:
        FeedFailure: no answer, or one that says that there is none to be had now.
        """
        record, port = self.settings.record, self.settings.port
        # Read anew each time: the system's name servers may change, too.
        resolver = await asyncio.to_thread(self._resolver)
        try:
            async with asyncio.timeout(self.settings.timeout):
                if port is not None:
                    addresses = await self._addresses(resolver, self._host, record)
                    return {(address, port) for address in addresses}
                return await self._services(resolver)
        except dns.exception.DNSException as error:
            raise FeedFailure(_cause(error)) from None
        except TimeoutError:
            raise FeedFailure(f"no answer within {self.settings.timeout} s") from None
        except OSError as error:
            cause = error.strerror or type(error).__name__
            raise FeedFailure(cause) from None

    def _resolver(self) -> dns.asyncresolver.Resolver:
        servers = [name_server(server) for server in self.settings.servers]
        try:
            resolver = dns.asyncresolver.Resolver(configure=not servers)
        except dns.resolver.NoResolverConfiguration as error:
            raise FeedFailure(f"the system's name servers are not known: {error}") from None
        if servers:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(*server) for server in servers]
        resolver.lifetime = self.settings.timeout
        return resolver

    async def _services(self, resolver: dns.asyncresolver.Resolver) -> set[Endpoint]:
        """The addresses of an SRV record's targets: an engine is known by its address, so that it
        stays the same when its target is renamed."""
        try:
            answer = await resolver.resolve(self._host, "SRV", search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return set()
        ports = {(each.target, each.port) for each in answer if each.target != dns.name.root}
        if len(ports) > MAX_TARGETS:
            raise FeedFailure(f"more than {MAX_TARGETS} targets")
        targets = sorted({target for target, _ in ports})
        found = await asyncio.gather(*(self._either(resolver, target) for target in targets))
        addresses = dict(zip(targets, found, strict=True))
        return {(address, port) for target, port in ports for address in addresses[target]}

    async def _either(
        self, resolver: dns.asyncresolver.Resolver, target: dns.name.Name
    ) -> set[str]:
        """A target's IPv4 addresses, or its IPv6 ones where it has no others."""
        return await self._addresses(resolver, target, "A") or await self._addresses(
            resolver, target, "AAAA"
        )

    async def _addresses(
        self, resolver: dns.asyncresolver.Resolver, host: dns.name.Name, record: str
    ) -> set[str]:
        try:
            answer = await resolver.resolve(host, record, search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return set()
        return {str(ipaddress.ip_address(each.address)) for each in answer}


def _cause(error: dns.exception.DNSException) -> str:
    if isinstance(error, dns.resolver.NoNameservers):
        return "no name server gave an answer that can be used"
    return str(error) or type(error).__name__
