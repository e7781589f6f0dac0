"""Which backend takes a request, and when."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.config.base import Count, Seconds, Section, Share

HeaderName = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]


class PolicyConfig(Section, frozen=True):
    name: str = "prefix_affinity"
    params: dict[str, Any] = {}


class ClassLimits(Section, frozen=True):
    """Limits of one class: the first two at each backend, the others for each pool's queue."""

    max_requests: Count = 256
    max_uncached_tokens: Count = 10_000_000
    """Uncached tokens before their first token. One larger request goes when it is alone."""
    max_waiting: Annotated[int, Meta(ge=0)] = 1024
    max_waiting_tokens: Count = 16_000_000
    """Prompt tokens of those that wait."""
    max_waiting_bytes: Count = 256 * 1024 * 1024
    """Bodies of those that wait. One larger request waits when it is alone."""
    max_wait: Seconds = 120.0


class PrefillLimits(ClassLimits, frozen=True):
    max_requests: Count = 64
    max_waiting: Annotated[int, Meta(ge=0)] = 256
    max_wait: Seconds = 600.0


class LengthRange(Section, frozen=True):
    """Limits at each backend for the prompts of at least some length, so that long ones cannot
    fill its KV cache. One of them always goes when it is alone."""

    min_tokens: Count
    max_requests: Count | None = None
    max_cache_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Of the KV cache, by their prompt tokens."""


class Target(Section, frozen=True):
    """When a first token is due, counted from the request's arrival: the later of the two."""

    seconds: Seconds = 2.0
    factor: Annotated[float, Meta(ge=0, le=100)] = 3.0
    """Times the prefill of the whole prompt on an idle backend."""


class PriorityShares(Section, frozen=True):
    """Higher priorities go first; of the releases while they wait, lower ones get at least this
    share each."""

    normal: Share = 0.3
    low: Share = 0.05

    def __post_init__(self) -> None:
        if self.normal + self.low > 1.0:
            raise ValueError(
                f"priorities: normal and low together must leave something to high: at most 1, got"
                f" {self.normal} + {self.low}"
            )


class Tenants(Section, frozen=True):
    """Fairness by seconds of service, in which cached tokens are nearly free."""

    header: HeaderName | None = None
    """Request header that names the tenant, where whoever sends it can be trusted: see
    `server.trusted_proxies` and `auth`. Without one, or when it is missing, the client's API key
    tells tenants apart."""
    quantum: Seconds = 1.0
    """Seconds of service that a tenant may be ahead of the others."""
    weights: dict[str, Annotated[float, Meta(gt=0, le=1000)]] = {}
    """By tenant, as the header or its API key names it; 1 for all others."""
    max_tracked: Count = 4096
    """Tenants whose service is counted; those beyond, least recently seen first, start anew."""


class Scheduling(Section, frozen=True):
    prefill_seconds: Seconds = 0.5
    """From this much prefill at the best backend on, a request is in the prefill class."""
    prefill_share: Share = 0.2
    """Share of the releases that the prefill class gets while both classes wait."""
    gate: Seconds | None = 0.5
    """Prefill pending at a backend from which on its requests are held here, where their order can
    still change. What its KV cache has no room for is held too. null sends everything on at
    once."""
    order: Literal["deadline", "arrival", "work"] = "deadline"
    """Among equals: whose first token is due next, who came first, or who brings the least work."""
    pace: Annotated[float, Meta(gt=0, le=60)] | None = 0.1
    """Seconds per output token that streams are to keep to on average. A prefill is held here while
    it would make streams beside it miss that, for three times its target or half of the time that
    it may wait at most; null sends it on whatever it stalls."""
    pace_tolerance: Annotated[float, Meta(ge=0, le=100)] = 0.05
    """Streams that one prefill may make miss their pace, as an expectation."""
    shed_factor: Annotated[float, Meta(ge=1, le=1000)] | None = None
    """Refuse on arrival what would miss its target by more than this factor. What would wait
    longer than it may is refused on arrival in any case."""
    target: Target = Target()
    priorities: PriorityShares = PriorityShares()
    tenants: Tenants = Tenants()
    max_kv_use: Annotated[float, Meta(gt=0, le=1)] | None = 0.95
    """Share of the KV cache that is in use, as the engine says, from which on a backend gets
    nothing new, whatever the policy. It does not hold where an engine does not say; null has none.
    """
    ranges: tuple[LengthRange, ...] = ()
    prefill: PrefillLimits = PrefillLimits()
    decode: ClassLimits = ClassLimits()


class Index(Section, frozen=True):
    max_blocks: Annotated[int, Meta(ge=1000)] = 2_000_000
    """Bound of the whole index: blocks held, summed over all backends."""
    capacity_tokens: Count = 500_000
    """KV cache size assumed of a backend that does not report its own."""
