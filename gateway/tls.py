"""TLS contexts out of settings, on both sides of the gateway."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from gateway.config import BackendTls, ConfigError, Secret, ServerTls
from gateway.secrets import reveal, warn_if_open


def backend_context(settings: BackendTls, option: str) -> ssl.SSLContext:
    """Towards backends.

    Args:
        option: where the settings are, dotted, for error messages.

    Raises:
        ConfigError: a file cannot be read, or is not what it should be.
    """
    ca = settings.ca
    if ca is not None:
        _check_readable(ca, f"{option}.ca")
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise _unusable(f"{option}.ca", ca, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert is not None and settings.key is not None:
        _load_chain(context, settings.cert, settings.key, settings.key_password, option)
    return context


class ServerCertificate:
    """Towards clients.

    Args:
        option: where the settings are, dotted, for error messages.

    Raises:
        ConfigError: a file cannot be read, or is not what it should be.

    Attributes:
        context: for the listener; handshakes to come see what `refresh` has read.
    """

    def __init__(self, settings: ServerTls, option: str = "server.tls") -> None:
        self._settings = settings
        self._option = option
        self.context = self._new()
        self._seen = self._state()

    def _new(self) -> ssl.SSLContext:
        settings, option = self._settings, self._option
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if settings.client_ca is not None:
            _check_readable(settings.client_ca, f"{option}.client_ca")
            try:
                context.load_verify_locations(settings.client_ca)
            except ssl.SSLError as error:
                raise _unusable(f"{option}.client_ca", settings.client_ca, error) from None
            context.verify_mode = ssl.CERT_REQUIRED
        _load_chain(context, settings.cert, settings.key, settings.key_password, option)
        return context

    def refresh(self) -> bool:
        """Read certificate and key anew if their files have changed.

        Returns:
            Whether they had.

        Raises:
            ConfigError: they cannot be used; those that were read before stay. It is raised once
                for each change.
        """
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self._new()  # a pair that does not belong together must not reach the one in use
        settings = self._settings
        _load_chain(self.context, settings.cert, settings.key, settings.key_password, self._option)
        return True

    def _state(self) -> list[tuple[int, int] | None]:
        return [_stamp(Path(path)) for path in (self._settings.cert, self._settings.key)]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _load_chain(
    context: ssl.SSLContext, cert: str, key: str, password: Secret | None, option: str
) -> None:
    _check_readable(cert, f"{option}.cert")
    _check_readable(key, f"{option}.key")
    warn_if_open(Path(key), f"{option}.key")
    try:
        context.load_cert_chain(cert, key, _asked_for(password, f"{option}.key_password", key))
    except ssl.SSLError as error:
        reason = error.reason or "not readable as PEM"
        raise ConfigError(
            f"{option}: certificate {cert} and key {key} cannot be used: {reason} (expected PEM"
            " files that belong together, and the key's password if it has one)",
            field=option,
        ) from None


def _asked_for(password: Secret | None, option: str, key: str) -> Callable[[], str]:
    """What OpenSSL calls for an encrypted key; without it, it would ask at the terminal."""

    def ask() -> str:
        if password is None:
            raise ConfigError(f"{option}: {key} is encrypted, expected its password", field=option)
        return reveal(password, option)

    return ask


def _check_readable(path: str, option: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{option}: {path} cannot be read: {error.strerror}", field=option
        ) from None


def _unusable(option: str, path: str | None, error: ssl.SSLError) -> ConfigError:
    reason = error.reason or "not readable as PEM"
    return ConfigError(
        f"{option}: {path} cannot be used: {reason} (expected certificates in PEM)", field=option
    )
