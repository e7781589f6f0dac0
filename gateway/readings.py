"""What the metrics page reads of a gateway."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.telemetry.sources import FeedReading, GateState, Sources
from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.app import Gateway


def sources_of(gateway: Gateway) -> Sources:
    """Where the metrics page looks, at each scrape."""
    return Sources(
        version=VERSION,
        policy=lambda: gateway.pools.policy.name,
        clock=gateway.clock,
        backends=gateway.fleet,
        loads=gateway.loads.values(),
        pools=gateway.pools,
        gates=lambda: _gates(gateway),
        feeds=lambda: _feed_readings(gateway),
        errors=lambda: {
            str(each): sums for each, sums in gateway.learning.errors.snapshot().items()
        },
        bytes_per_token=lambda model: gateway.learning.tokens.bytes_per_token(
            gateway.fleet.aliases.main(model)
        ),
        index=gateway.index.stats,
        keys=gateway.keys,
        sharing=lambda: None if gateway.replication is None else gateway.replication.reading(),
        overrides=lambda: {str(held): count for held, count in gateway.overrides.counts().items()},
    )


def _gates(gateway: Gateway) -> dict[str, GateState]:
    now = gateway.clock()
    return {
        load.id: GateState(not pool.is_open(load), load.pending_seconds(now))
        for pool in gateway.pools
        for load in pool.backends
    }


def _feed_readings(gateway: Gateway) -> Iterator[FeedReading]:
    now = gateway.clock()
    for state in gateway.feeds:
        yield FeedReading(
            state,
            len(gateway.reconciler.listed(state.source, state.name)),
            gateway.reconciler.unreachable(state.source, state.name),
            math.inf if state.read_at is None else now - state.read_at,
        )
