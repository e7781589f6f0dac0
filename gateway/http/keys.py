"""API keys: which ones there are, and whose a request's is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from gateway.config import ApiKey, Auth, ConfigError, KeyLimits
from gateway.http.errors import RequestError
from gateway.http.headers import Headers
from gateway.http.quotas import KeyUse
from gateway.secrets import digest_of, hash_bytes


class AuthFailure(StrEnum):
    """Why a request was not let in."""

    MISSING = "missing"
    """It shows no key."""
    UNKNOWN = "unknown"
    """It shows one that is not known, or no longer."""


class Unauthenticated(RequestError):
    status = 401
    type = "authentication_error"
    close = True
    headers = ((b"www-authenticate", b'Bearer realm="prefixgate"'),)

    def __init__(self, failure: AuthFailure) -> None:
        how = "send it as Authorization: Bearer KEY, x-api-key or api-key"
        super().__init__(
            f"An API key is needed: {how}."
            if failure is AuthFailure.MISSING
            else f"The API key is not valid here ({how}).",
            code="missing_api_key" if failure is AuthFailure.MISSING else "invalid_api_key",
        )


class Key:
    """One key, ready for use.

    Attributes:
        name: for people.
        tenant: whom its requests count for.
        max_priority: the highest that they can have.
        names_tenants: the tenant header is believed of them.
        use: of its limits.
    """

    __slots__ = ("_models", "max_priority", "models", "name", "names_tenants", "tenant", "use")

    def __init__(self, settings: ApiKey, use: KeyUse) -> None:
        self.name = settings.name
        self.tenant = settings.tenant or settings.name
        self.max_priority = settings.max_priority
        self.names_tenants = settings.names_tenants
        self.models = settings.models
        self._models = None if settings.models is None else _pattern(settings.models)
        self.use = use

    def allows(self, model: str) -> bool:
        """Whether its requests may be for a model; "" is whatever a backend serves."""
        return self._models is None or self._models.fullmatch(model) is not None

    def allows_adapter(self, model: str, adapter: str) -> bool:
        """Whether its requests may have an adapter put on a model; "" is one without a name."""
        return self.allows(adapter) or (adapter != "" and self.allows(f"{model}:{adapter}"))


def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    # Only the star is special: model names have brackets and question marks of their own.
    parts = (".*".join(map(re.escape, glob.split("*"))) for glob in globs)
    return re.compile(rf"(?!$)(?:{'|'.join(parts) or '(?!)'})", re.DOTALL)


class Keys:
    """All keys, by the digest of what clients show.

    Args:
        new_use: counts what the key of a name uses, within the limits that it has at first.

    Raises:
        ConfigError: a key cannot be read, or two are the same.

    Attributes:
        failures: requests that were not let in, by why.
        uses: by the key's name, in the settings' order.
    """

    def __init__(
        self,
        settings: Auth,
        new_use: Callable[[str, KeyLimits], KeyUse] = lambda name, limits: KeyUse(limits),
    ) -> None:
        self._new_use = new_use
        self.failures = dict.fromkeys(AuthFailure, 0)
        self.uses: dict[str, KeyUse] = {}
        self._by_digest: Mapping[bytes, Key] = {}
        self.reconfigure(settings)

    @property
    def enabled(self) -> bool:
        return self.settings.enabled

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_digest.values())

    def reconfigure(self, settings: Auth) -> None:
        """Have other keys from now on. Those that keep their name keep what they have used.

        Raises:
            ConfigError: as above; nothing has changed then.
        """
        digests: dict[bytes, ApiKey] = {}
        for number, key in enumerate(settings.keys):
            option = f"auth.keys[{number}]"
            digest = hash_bytes(key.hash, key.key, f"{option}.key")
            if digest in digests:
                raise ConfigError(
                    f"{option}: {key.name!r} is the same key as {digests[digest].name!r}",
                    field=option,
                )
            digests[digest] = key
        uses = {
            key.name: self.uses.get(key.name) or self._new_use(key.name, key.limits)
            for key in settings.keys
        }
        for key in settings.keys:
            uses[key.name].limits = key.limits
        self.uses = uses
        self._by_digest = {digest: Key(key, uses[key.name]) for digest, key in digests.items()}
        self.settings = settings

    def find(self, headers: Headers) -> Key:
        """Whose key a request shows. The first that is known counts, of `Authorization`,
        `x-api-key` and `api-key`.

        Raises:
            Unauthenticated: it shows none that is known.
        """
        shown = list(_shown(headers))
        key = self._known(shown)
        if key is not None:
            return key
        failure = AuthFailure.UNKNOWN if shown else AuthFailure.MISSING
        self.failures[failure] += 1
        raise Unauthenticated(failure)

    def look_up(self, headers: Headers) -> Key | None:
        """The same for a request that is not made: nothing is counted or refused."""
        return self._known(_shown(headers))

    def _known(self, credentials: Iterable[bytes]) -> Key | None:
        for credential in credentials:
            key = self._by_digest.get(digest_of(credential))
            if key is not None:
                return key
        return None


def _shown(headers: Headers) -> Iterator[bytes]:
    """What a request shows as keys; b"" for what cannot be one."""
    for wanted in (b"authorization", b"x-api-key", b"api-key"):
        for name, value in headers:
            if name == b"authorization" == wanted:
                scheme, _, rest = value.partition(b" ")
                yield rest.strip() if scheme.lower() == b"bearer" else b""
            elif name == wanted:
                yield value.strip()
