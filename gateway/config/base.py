"""What all settings are made of."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Hold = Annotated[float, Meta(ge=0, le=86_400)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
ServicePort = Annotated[int, Meta(ge=1, le=65_535)]
HostPort = Annotated[str, Meta(pattern=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):\d{1,5}$")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
ModelName = Annotated[str, Meta(min_length=1)]
HASH = r"^sha256:[0-9a-f]{64}$"
Hash = Annotated[str, Meta(pattern=HASH)]
"""As `prefixgate hash-key` prints it."""


class ConfigError(ValueError):
    """A setting is wrong. The message names the field, the value and what is allowed.

    Attributes:
        field: the place of the setting, dotted; None when it has none of its own.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the settings."""


class SecretRef(Section, frozen=True):
    """Where a secret is kept: exactly one of the two."""

    env: Annotated[str, Meta(min_length=1)] | None = None
    """Environment variable."""
    file: Annotated[str, Meta(min_length=1)] | None = None
    """File; white space around the secret is not part of it."""

    def __post_init__(self) -> None:
        if (self.env is None) is (self.file is None):
            raise ValueError("a secret is kept in exactly one of env and file")


Secret = Annotated[str, Meta(min_length=1)] | SecretRef
"""A secret itself, or where it is kept. `gateway.secrets.reveal` reads it."""
