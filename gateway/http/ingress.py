"""What is believed of a request's head: where it came from, and whose it is.

headers ─► trusted peer? ─► what stops here ─► key ─► identity
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.config import Scheduling, Settings
from gateway.http.client import Scope
from gateway.http.dialects.registry import KNOWN
from gateway.http.errors import Malformed, NotAllowed
from gateway.http.headers import (
    CREDENTIALS,
    NOT_SENT,
    TRUSTED_NOT_SENT,
    Headers,
    RequestHeaders,
    forwarded,
    read_request,
)
from gateway.http.identity import Identity
from gateway.http.keys import Keys
from gateway.http.paths import DeniedPaths
from gateway.http.peers import Peers
from gateway.types import Prompt


class Ingress:
    """Args:
    scheduling: the settings that hold now.

    Raises:
        ConfigError: a trusted peer or a denied path is not one.
    """

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        scheduling: Callable[[], Scheduling],
    ) -> None:
        self._keys = keys
        self._scheduling = scheduling
        self.reconfigure(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Have other settings hold from now on. Keys have a method of their own.

        Raises:
            ConfigError: as above; nothing has changed then.
        """
        peers = Peers(settings.server.trusted_proxies, "server.trusted_proxies")
        denied = DeniedPaths(settings.server.deny_paths)
        self._peers, self._denied = peers, denied
        self._open = frozenset(path for path in KNOWN if ("POST", path) not in denied)
        self._passes_transfers = settings.server.pass_transfer_fields
        kept = frozenset() if settings.auth.pass_credentials else CREDENTIALS
        kept = kept if settings.auth.enabled else frozenset()
        self._stops = {True: TRUSTED_NOT_SENT | kept, False: NOT_SENT | kept}
        self._tenant_header: str | None = None
        self._tenant = b""
        self._tenant_stops = self._stops

    def headers(self, pairs: Headers) -> RequestHeaders:
        """A request's headers, read, with everything in them believed."""
        self._look_up_tenant_header()
        return read_request(pairs, self._tenant, self._stops[True])

    def would_be(self, pairs: Headers, headers: RequestHeaders) -> Identity | None:
        """Whose a request would be that shows a known key, from a peer that is believed.

        Args:
            headers: the same, read.
        """
        key = self._keys.look_up(pairs) if self._keys.enabled else None
        return None if key is None else Identity.of(key, headers, trusted=True)

    def admit(self, scope: Scope) -> tuple[RequestHeaders, Identity | None]:
        """A request's headers, and whose it is where API keys say so.

        Raises:
            Unauthenticated: it shows no key that is known.
        """
        pairs: Headers = scope["headers"]
        client = scope["client"]
        peer: str = client[0] if client else ""
        trusted = peer in self._peers
        self._look_up_tenant_header()
        guarded = self._keys.enabled
        doubted = guarded or (bool(self._peers) and not trusted)
        stops = self._tenant_stops if doubted else self._stops
        headers = read_request(pairs, self._tenant, stops[trusted])
        identity = None
        if guarded:
            key = self._keys.find(pairs)
            identity = Identity.of(key, headers, trusted=trusted)
            if self._tenant:
                name = identity.tenant.encode("latin-1", "replace")
                headers.forward += b"%b: %b\r\n" % (self._tenant, name)
        elif doubted:
            headers.tenant = headers.priority = b""
        headers.forward += forwarded(
            pairs, headers.host, peer, scope.get("scheme", "http"), trusted=trusted
        )
        return headers, identity

    def check_path(self, method: str, path: str) -> None:
        """Raises:
        NotAllowed: it steers engines, and is not for clients.
        """
        if path not in self._open and (method, path) in self._denied:
            raise NotAllowed("This path is not served here.", code="path_not_allowed")

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises:
        Malformed: it tells engines where to work, which is decided here.
        """
        name = prompt.transfer
        if name and not self._passes_transfers:
            raise Malformed(
                f"'{name}' is not for clients: it tells engines where to work, which is decided"
                " here.",
                param=name,
                code="field_not_allowed",
            )

    def _look_up_tenant_header(self) -> None:
        """It can be changed while the gateway runs."""
        header = self._scheduling().tenants.header
        if header == self._tenant_header:
            return
        self._tenant_header = header
        self._tenant = b"" if header is None else header.lower().encode("latin-1", "replace")
        self._tenant_stops = {
            trusted: stops | {self._tenant} for trusted, stops in self._stops.items()
        }
