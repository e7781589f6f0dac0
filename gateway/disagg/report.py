"""What was seen of each model in numbers, and what they advise. Each number has its unit in its
name; what is null is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.advice import Advice, Observed, advise
from gateway.disagg.links import SETUP_SECONDS, Links
from gateway.disagg.networks import Networks
from gateway.disagg.pairs import Pairs
from gateway.disagg.span import Span, Waste
from gateway.disagg.traffic import Traffic
from gateway.fleet.backend import Backend, BackendState
from gateway.telemetry.sketch import Sketch
from gateway.types import Role

LEAST_TIMED = 20
"""Transfers from which on their time per token is known where the cache's size is not."""


class Basis(StrEnum):
    """Where the time of a transfer that is told is known from."""

    CONFIGURED = "configured"
    """The cache's size, and the bandwidth of the settings."""
    LEARNT = "learnt"
    """The cache's size, and the bandwidth that transfers have shown."""
    TIMED = "timed"
    """What transfers have taken per token; the cache's size is not known."""


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of one role that serve the model."""

    role: Role
    engines: int
    healthy_engines: int
    connectors: list[ConnectorName]
    """How they hand caches over."""
    prefill_seconds_per_second: float
    decode_seconds_per_second: float
    """Of the healthy engines' time, all together, for all models that they serve."""
    utilisation_ratio: float | None
    """The two together, per engine; null without a healthy one. 1 is as much as they can do."""


class TransferReport(msgspec.Struct, frozen=True, kw_only=True):
    """KV caches that went from engine to engine."""

    count: int
    kv_tokens_moved: float
    """That the decode engines did not hold."""
    kv_bytes_moved: float | None
    timed_count: int
    """Of those, the ones of which both ends were seen: of a stream, by a protocol whose decode leg
    waits for the prefill leg."""
    predicted_p50_seconds: float | None
    predicted_p95_seconds: float | None
    observed_p50_seconds: float | None
    observed_p95_seconds: float | None


class WasteReport(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill legs whose result nobody fetched."""

    count: int
    reasons: dict[Waste, int]
    prefill_seconds: float


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """One model, over the last `observed.window_seconds`, as far as this gateway has sent its
    requests."""

    model: str
    advice: Advice
    pools: list[PoolReport]
    requests_count: int
    handovers_count: int
    transfers: TransferReport
    wasted_prefills: WasteReport
    kv_bytes_per_token: float | None
    """As `disagg.models` says; null where it does not."""
    bandwidth_bytes_per_second: float | None
    transfer_basis: Basis | None
    observed: Observed


def report(
    backends: Iterable[Backend],
    traffic: Traffic,
    networks: Networks,
    pairs: Pairs,
    pace: float | None,
) -> list[ModelReport]:
    """Of all models that backends list, without adapters, in the backends' order."""
    serving: dict[str, list[Backend]] = {}
    for backend in backends:
        adapters = {} if backend.facts is None else backend.facts.adapters
        for model in backend.models:
            if model not in adapters:
                serving.setdefault(model, []).append(backend)
    seconds = max(1.0, traffic.seconds)
    spans = {model: traffic.seen(model) for model in serving}
    return [
        _of_model(
            model,
            spans[model],
            _pools(serving[model], spans.values(), pairs, seconds),
            networks.of(model),
            seconds,
            pace,
            _chunk(serving[model]),
        )
        for model in serving
    ]


def _of_model(
    model: str,
    span: Span,
    pools: list[PoolReport],
    links: Links | None,
    seconds: float,
    pace: float | None,
    chunk: int | None,
) -> ModelReport:
    long = span.prompts.quantile(0.95)
    transfer, basis = _transfer_seconds(span, long, links)
    engines = {pool.role: pool.healthy_engines for pool in pools}
    used = {pool.role: pool.utilisation_ratio for pool in pools}
    all_ttft = Sketch()
    all_ttft.take_in(span.ttft)
    all_ttft.take_in(span.handed_ttft)
    observed = Observed(
        window_seconds=seconds,
        ttft_count=span.ttft.count,
        ttft_p50_seconds=span.ttft.quantile(0.5),
        ttft_p99_seconds=span.ttft.quantile(0.99),
        all_ttft_count=all_ttft.count,
        all_ttft_p50_seconds=all_ttft.quantile(0.5),
        all_ttft_p99_seconds=all_ttft.quantile(0.99),
        tpot_count=span.tpot.count,
        tpot_p50_seconds=span.tpot.quantile(0.5),
        tpot_p99_seconds=span.tpot.quantile(0.99),
        pace_seconds=pace,
        prompt_count=span.prompts.count,
        prompt_mean_tokens=span.prompts.mean,
        prompt_deviation_tokens=span.prompts.deviation,
        prompt_p95_tokens=long,
        transfer_p95_prompt_seconds=transfer,
        concurrency_requests=span.seconds / seconds,
        handover_ratio=span.handovers / span.requests if span.requests else None,
        prefill_seconds_per_second=sum(span.prefill.values()) / seconds,
        decode_seconds_per_second=sum(span.decode.values()) / seconds,
        prefill_engines=engines.get(Role.PREFILL, 0),
        decode_engines=engines.get(Role.DECODE, 0),
        unified_engines=engines.get(Role.UNIFIED, 0),
        chunk_tokens=chunk,
        prefill_utilisation_ratio=used.get(Role.PREFILL),
        decode_utilisation_ratio=used.get(Role.DECODE),
    )
    transfers = TransferReport(
        count=span.transfers,
        kv_tokens_moved=span.moved_tokens,
        kv_bytes_moved=None if links is None else span.moved_bytes,
        timed_count=span.observed.count,
        predicted_p50_seconds=span.predicted.quantile(0.5),
        predicted_p95_seconds=span.predicted.quantile(0.95),
        observed_p50_seconds=span.observed.quantile(0.5),
        observed_p95_seconds=span.observed.quantile(0.95),
    )
    wasted = WasteReport(
        count=sum(span.wasted.values()),
        reasons=dict(span.wasted),
        prefill_seconds=span.wasted_seconds,
    )
    return ModelReport(
        model=model,
        advice=advise(observed),
        pools=pools,
        requests_count=span.requests,
        handovers_count=span.handovers,
        transfers=transfers,
        wasted_prefills=wasted,
        kv_bytes_per_token=None if links is None else links.shape.per_token,
        bandwidth_bytes_per_second=None if links is None else links.usual_bandwidth,
        transfer_basis=basis,
        observed=observed,
    )


def _chunk(backends: Sequence[Backend]) -> int | None:
    """The largest that an engine says which generates."""
    said = (
        backend.facts.chunk_tokens
        for backend in backends
        if backend.facts is not None and backend.role is not Role.PREFILL
    )
    return max((size for size in said if size is not None), default=None)


def _transfer_seconds(
    span: Span, tokens: float | None, links: Links | None
) -> tuple[float | None, Basis | None]:
    """What the cache of so many tokens takes from engine to engine."""
    if links is not None:
        basis = Basis.LEARNT if links.moved else Basis.CONFIGURED
        if tokens is None:
            return None, basis
        return SETUP_SECONDS + links.shape.bytes(tokens) / links.usual_bandwidth, basis
    if span.observed.count < LEAST_TIMED or not span.timed_tokens:
        return None, None
    if tokens is None:
        return None, Basis.TIMED
    return tokens * span.observed.sum / span.timed_tokens, Basis.TIMED


def _pools(
    backends: Sequence[Backend], spans: Iterable[Span], pairs: Pairs, seconds: float
) -> list[PoolReport]:
    """Those that there are, in the order of `Role`."""
    pools = []
    spans = list(spans)
    for role in Role:
        engines = [backend for backend in backends if backend.role is role]
        healthy = [backend.id for backend in engines if backend.state is BackendState.HEALTHY]
        if not engines:
            continue
        prefill = sum(span.prefill.get(id, 0.0) for span in spans for id in healthy) / seconds
        decode = sum(span.decode.get(id, 0.0) for span in spans for id in healthy) / seconds
        spoken = {connector.name for each in engines if (connector := pairs.speaks(each))}
        pools.append(
            PoolReport(
                role=role,
                engines=len(engines),
                healthy_engines=len(healthy),
                connectors=sorted(spoken),
                prefill_seconds_per_second=prefill,
                decode_seconds_per_second=decode,
                utilisation_ratio=(prefill + decode) / len(healthy) if healthy else None,
            )
        )
    return pools
