"""What a request says of itself: the facts that class, limits, order and policy look at.

The gateway's own headers ask for something; what they ask for in a way that cannot be understood
is refused, because a client that sends them relies on them. A body's `priority` is the engine's
field, so it is read where it makes sense and never judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import structs

from gateway.estimates.outputs import Outputs
from gateway.estimates.tokens import NOMINAL_BYTES, Content, TokenEstimate, content_of
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.http.dialects.base import Dialect
from gateway.http.dialects.key import utf8
from gateway.http.errors import Malformed, NotAllowed
from gateway.http.headers import MAX_TENANT, RequestHeaders
from gateway.http.identity import Identity
from gateway.prefix.blocks import BlockScale
from gateway.prefix.generations import Generations
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.classify import appraise
from gateway.scheduling.pool import Pool
from gateway.types import NO_MATCH, Chain, Clock, EngineKind, Match, Priority, Prompt
from policies.base import RouteRequest

_MAX_CREDENTIALS = 4_096
_MAX_MS = 86_400_000
_NOT_ALIASED: Mapping[str, Chain] = {}
_PRIORITIES = {priority.encode(): priority for priority in Priority}


class Facts(msgspec.Struct, frozen=True):
    """Attributes:
    prompt: what the body says, but for the key itself: it is as large as the prompt, and these
        facts are kept as long as the request.
    request: what routing looks at; its class and deadline are still to be appraised.
    priority: as the gateway's own header gives it, None without one.
    target: seconds in which the client wants its first token, None when it does not say.
    max_wait: seconds for which it is ready to wait, None when it does not say.
    key_bytes: size of the prompt key.
    content: what the prompt is made of.
    scale: engine tokens per token of the index, for this prompt.
    aliased: where the model is an alias, the chain under each name that it stands for, the
        preferred ones first.
    """

    prompt: Prompt
    request: RouteRequest
    priority: Priority | None = None
    target: float | None = None
    max_wait: float | None = None
    key_bytes: int = 0
    content: Content = Content.PROSE
    scale: float = 1.0
    aliased: Mapping[str, Chain] = _NOT_ALIASED


class Keyed(NamedTuple):
    """Attributes:
    content: what the prompt is made of.
    chain: of its blocks, b"" without a prompt key.
    aliased: as in `Facts`.
    """

    prompt: Prompt
    content: Content
    chain: Chain
    aliased: Mapping[str, Chain]


class FactReader:
    """Reads requests; looks up what is known of their prompts."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: PrefixIndex,
        scale: BlockScale,
        generations: Generations,
        tokens: TokenEstimate,
        outputs: Outputs,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._scale = scale
        self._generations = generations
        self._tokens = tokens
        self._outputs = outputs
        self._clock = clock
        self._tenants: dict[int, str] = {}

    def read(
        self,
        dialect: Dialect,
        headers: RequestHeaders,
        body: bytes,
        identity: Identity | None = None,
    ) -> Facts:
        """Args:
        identity: whose it is, where API keys say so.

        Raises:
            RequestError: it cannot be understood.
        """
        return self.place(dialect, headers, self.key(dialect, headers, body), identity)

    def key(self, dialect: Dialect, headers: RequestHeaders, body: bytes) -> Keyed:
        """The first half of `read`, which grows with the body. It may run in another thread.

        Raises:
            RequestError: it cannot be understood.
        """
        prompt = dialect.parse(body, headers.content_type.decode("latin-1"))
        content = Content.IDS if prompt.is_ids else content_of(prompt.key)
        names = self._fleet.aliases.names(prompt.model)
        aliased = {name: self._chain(prompt, name) for name in names} if names else _NOT_ALIASED
        chain = aliased[names[0]] if names else self._chain(prompt, prompt.model)
        return Keyed(prompt, content, chain, aliased)

    def place(
        self,
        dialect: Dialect,
        headers: RequestHeaders,
        keyed: Keyed,
        identity: Identity | None = None,
    ) -> Facts:
        """The second half of `read`: what is known here of such a prompt.

        Raises:
            RequestError: the gateway's own headers cannot be understood.
        """
        prompt, content, chain, aliased = keyed
        model, size = prompt.model, prompt.prompt_bytes
        name = next(iter(aliased), model)
        bytes_per_token = self._tokens.bytes_per_token(name, content)
        scale = NOMINAL_BYTES / bytes_per_token
        match = self.match(chain, scale, aliased) if chain else NO_MATCH
        tenant = self._tenant(headers) if identity is None else identity.tenant
        output = 0
        if prompt.generates:
            output = self._expected_output(dialect, tenant, chain, prompt)
        priority = _priority(headers.priority) if headers.priority else None
        if priority is not None and identity is not None:
            priority = identity.capped(priority)
        return Facts(
            structs.replace(prompt, key=b""),
            RouteRequest(
                model,
                chain,
                max(1, round(size / bytes_per_token)) if size else 0,
                output,
                match,
                headers.session.decode("latin-1") or None,
                now=self._clock(),
                tenant=tenant,
                priority=Priority.NORMAL if priority is None else priority,
            ),
            priority,
            _seconds("ttft-ms", headers.ttft_ms, 1) if headers.ttft_ms else None,
            _seconds("max-wait-ms", headers.max_wait_ms, 0) if headers.max_wait_ms else None,
            len(prompt.key),
            content,
            scale,
            aliased,
        )

    def _chain(self, prompt: Prompt, model: str) -> Chain:
        if not prompt.key:
            return b""
        return self._scale.chain(self.namespace(prompt, model), prompt.key)

    def namespace(self, prompt: Prompt, model: str) -> bytes:
        """The prompt's namespace under one of its model's names."""
        namespace = prompt.namespace
        if model != prompt.model:
            namespace = utf8(model) + namespace[len(utf8(prompt.model)) :]
        return self._generations.namespace(model, namespace)

    def match(self, chain: Chain, scale: float, aliased: Mapping[str, Chain]) -> Match:
        """What each backend is believed to hold, in the engine's tokens.

        Args:
            scale, aliased: as in `Facts`.
        """
        match = self._match_aliased(aliased) if aliased else self._index.match(chain)
        tokens = match.tokens
        if scale == 1.0 or not tokens:
            return match
        return Match(match.blocks, {id: scale * held for id, held in tokens.items()})

    def _match_aliased(self, aliased: Mapping[str, Chain]) -> Match:
        """What each backend holds of the model that it would be sent."""
        blocks: dict[str, int] = {}
        tokens: dict[str, float] = {}
        for name, chain in aliased.items():
            match = self._index.match(chain)
            for id, count in match.blocks.items():
                if name_at(aliased, self._fleet.get(id)) == name:
                    blocks[id] = count
                    tokens[id] = match.tokens[id]
        return Match(blocks, tokens)

    def _expected_output(self, dialect: Dialect, tenant: str, chain: Chain, prompt: Prompt) -> int:
        cap = prompt.max_output_tokens
        return round(self._outputs.expect(prompt.model, dialect.name, tenant, chain, cap))

    def _tenant(self, headers: RequestHeaders) -> str:
        """Whom a request counts for: the tenant that a trusted header names, else the API key."""
        if headers.tenant:
            return headers.tenant[:MAX_TENANT].decode("latin-1")
        credential = headers.credential
        if not credential:
            return ""
        # By a hash that nobody outside can know: credentials are not to be kept.
        known = self._tenants.get(hash(credential))
        if known is not None:
            return known
        # The same key counts as one whichever way it is sent.
        key = credential[7:] if credential[:7].lower() == b"bearer " else credential
        if len(self._tenants) >= _MAX_CREDENTIALS:
            self._tenants.clear()
        tenant = self._tenants[hash(credential)] = blake2b(key, digest_size=8).hexdigest()
        return tenant

    def appraise(self, facts: Facts, pool: Pool, identity: Identity | None = None) -> RouteRequest:
        """The request with its class, its deadline and its priority among those of a pool.

        Raises:
            NotAllowed: its body asks the engine for more priority than its API key may have.
        """
        request, given = facts.request, facts.prompt.priority
        if given:
            priority = self._engines_priority(given, pool)
            if identity is not None and identity.exceeds(priority):
                # The body goes on as it is: it cannot be let through and ranked lower here.
                raise NotAllowed(
                    f"This API key's requests have at most the priority {identity.max_priority};"
                    " the body's 'priority' asks for more.",
                    param="priority",
                    code="priority_not_allowed",
                )
            if facts.priority is None:
                request = structs.replace(request, priority=priority)
        return appraise(request, pool.backends, pool.scheduling, facts.target)

    def _engines_priority(self, given: int, pool: Pool) -> Priority:
        """What an engine's number means. The lower goes first, but with SGLang the higher."""
        kinds = {self._fleet.get(load.id).kind for load in pool.backends}
        first = given > 0 if kinds == {EngineKind.SGLANG} else given < 0
        return Priority.HIGH if first else Priority.LOW


def name_at(aliased: Mapping[str, Chain], backend: Backend) -> str:
    """Which of an alias's names a backend knows."""
    models = backend.models
    return next((name for name in aliased if name in models), next(iter(aliased)))


def _priority(value: bytes) -> Priority:
    try:
        return _PRIORITIES[value.lower()]
    except KeyError:
        raise _refused("priority", value, f"one of {', '.join(Priority)}") from None


def _seconds(name: str, value: bytes, least: int) -> float:
    if value.isdigit() and least <= (milliseconds := int(value[:9])) <= _MAX_MS:
        return milliseconds / 1000.0
    raise _refused(name, value, f"whole milliseconds, {least} to {_MAX_MS}")


def _refused(name: str, value: bytes, expected: str) -> Malformed:
    header = f"x-prefixgate-{name}"
    shown = value[:50].decode("latin-1")
    return Malformed(
        f"{header} is {shown!r}; it must be {expected}.", param=header, code="invalid_header"
    )
