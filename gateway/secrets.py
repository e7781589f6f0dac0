"""Secrets: where they are kept, how they are read, and how keys are told by their hashes.

A setting says the secret itself, or `{env: NAME}`, or `{file: PATH}`. What is read never goes back
into the settings, so that nothing which shows settings can show it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
from pathlib import Path

from gateway.config import ConfigError, Secret, SecretRef, Settings

logger = logging.getLogger("prefixgate.secrets")

PREFIX = "pg-"
MIN_KEY = 16
"""Characters. What is shorter can be guessed, whatever it is hashed with."""


def reveal(secret: Secret, option: str) -> str:
    """The secret itself.

    Args:
        option: where it is set, dotted, for error messages.

    Raises:
        ConfigError: it is not there, empty, or not printable ASCII. The message does not have it.
    """
    where = ""
    if not isinstance(secret, SecretRef):
        value = secret
    elif secret.env is not None:
        where = f" (environment variable {secret.env})"
        value = os.environ.get(secret.env, "")
    else:
        assert secret.file is not None
        where = f" (file {secret.file})"
        value = _read(Path(secret.file), option)
    value = value.strip()
    if not value:
        raise ConfigError(f"{option}: the secret{where} is missing or empty", field=option)
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{option}: the secret{where} has characters that no header can carry, expected"
            " printable ASCII",
            field=option,
        )
    return value


def _read(path: Path, option: str) -> str:
    warn_if_open(path, option)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{option}: {path} cannot be read: {error.strerror}", field=option
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option}: {path} is not text", field=option) from None


def warn_if_open(path: Path, option: str) -> None:
    """Warn of a file with a secret that every user of the machine can read."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & stat.S_IROTH:
        logger.warning("%s: %s can be read by everybody on this machine", option, path)


def warn_of_plain(settings: Settings, path: Path) -> None:
    """Warn of settings that everybody can read where they say secrets themselves."""
    backends = [*settings.backends, *(source.backend for source in settings.discovery.sources)]
    redis = settings.redis
    tls = (settings.server.tls, settings.backend_tls, redis.tls, *(each.tls for each in backends))
    secrets = [
        *(settings.admin.token, redis.password, redis.sentinel_password),
        *(backend.api_key for backend in backends),
        *(each.key_password for each in tls if each is not None),
    ]
    if isinstance(redis.url, str) and "@" in redis.url:
        secrets.append(redis.url)
    if any(isinstance(secret, str) for secret in secrets):
        warn_if_open(path, "secrets in the settings")


def warn_of_weak(settings: Settings) -> None:
    """Warn of a token with every right that can be guessed. Keys and tokens of less are refused."""
    token = settings.admin.token
    length = MIN_KEY if token is None else len(reveal(token, "admin.token"))
    if length < MIN_KEY:
        logger.warning(
            "admin.token has %d characters, which can be guessed; `prefixgate hash-key` makes one",
            length,
        )


def hash_key(key: str) -> str:
    """As settings have it. A plain digest is enough for keys that nobody can guess; it would not
    be for passwords."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def digest_of(credential: bytes) -> bytes:
    """Of what a client shows, to be looked up among the known ones.

    A look-up by digest needs no comparison in constant time: how far a digest agrees with another
    tells nothing of the key, and nobody can steer it.
    """
    return hashlib.sha256(credential).digest()


def hash_bytes(hash: str | None, secret: Secret | None, option: str) -> bytes:
    """The digest of a key that is given by its hash, or by where it is kept.

    Raises:
        ConfigError: as `reveal`, or the key is too short.
    """
    if hash is not None:
        return bytes.fromhex(hash.removeprefix("sha256:"))
    assert secret is not None
    value = reveal(secret, option)
    if len(value) < MIN_KEY:
        raise ConfigError(
            f"{option}: has {len(value)} characters, expected at least {MIN_KEY}", field=option
        )
    return digest_of(value.encode())


def new_key() -> str:
    """A key with 256 bits that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)
