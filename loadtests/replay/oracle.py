"""What caching could do at best: one cache as large as all engines' together."""

from __future__ import annotations

from collections import OrderedDict

from loadtests.replay.trace import Trace


class Oracle:
    """One LRU that sees all requests at once, in order of arrival.

    It bounds what routing can reach in that order; a gateway that reorders may pass it.

    Args:
        capacity_tokens: of the cache; None for one without end.
    """

    def __init__(self, unit_tokens: int, capacity_tokens: int | None) -> None:
        self._unit = unit_tokens
        self._capacity = None if capacity_tokens is None else capacity_tokens // unit_tokens
        self._units: OrderedDict[int, None] = OrderedDict()

    def serve(self, units: list[int], input_tokens: int) -> int:
        """The prompt tokens that were there; then all of it is.

        Args:
            units: of the prompt, as an engine names them.
        """
        held = self._units
        # As in the engine, the last token is always computed.
        limit = min(len(units), (input_tokens - 1) // self._unit)
        hits = next((at for at in range(limit) if units[at] not in held), limit)
        for unit in reversed(units):  # the tail is to go first
            held[unit] = None
            held.move_to_end(unit)
        if self._capacity is not None:
            while len(held) > self._capacity:
                held.popitem(last=False)
        return hits * self._unit


def hit_ratio(trace: Trace, capacity_tokens: int | None, warm_up: float) -> float:
    """Share of the prompt tokens of all requests from `warm_up` seconds on that were cached."""
    oracle = Oracle(trace.unit_tokens, capacity_tokens)
    cached = total = 0
    for request in trace.requests:
        hits = oracle.serve(list(trace.units(request)), request.input_tokens)
        if request.arrival >= warm_up:
            cached += hits
            total += request.input_tokens
    return cached / total if total else 0.0
