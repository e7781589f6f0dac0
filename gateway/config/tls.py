"""TLS towards clients and towards backends."""

from __future__ import annotations

from gateway.config.base import Secret, Section


class ServerTls(Section, frozen=True):
    """TLS 1.2 or newer towards clients. Files in PEM; read anew when they change."""

    cert: str
    """The certificate, and those between it and its authority."""
    key: str
    key_password: Secret | None = None
    client_ca: str | None = None
    """Whose certificates clients must have. Without one they need none."""


class BackendTls(Section, frozen=True):
    """Towards an https backend. Files in PEM."""

    ca: str | None = None
    """Whose certificates are believed; those that the system trusts when not given."""
    cert: str | None = None
    """What the gateway shows of itself, with `key`."""
    key: str | None = None
    key_password: Secret | None = None
    server_name: str | None = None
    """The name in the backend's certificate, where it is not the URL's host."""
    insecure: bool = False
    """Believe any certificate. Whoever is on the way can then read and change everything."""

    def __post_init__(self) -> None:
        if (self.cert is None) is not (self.key is None):
            raise ValueError("cert and key are given together or not at all")
        if self.insecure and self.ca is not None:
            raise ValueError("insecure believes any certificate: ca has no use beside it")
