"""A part of a trace, as a trace of its own."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from gateway.config import ConfigError
from loadtests.replay.trace import Trace


def cut(trace: Trace, begin: float, seconds: float | None) -> Trace:
    """Some seconds from `begin` on, or all to the end, arriving from 0 on. Turns whose parent
    comes before them are first turns there.

    Raises:
        ConfigError: no request is in it.
    """
    if not 0 <= begin <= trace.span:
        raise ConfigError(
            f"--begin {begin:g}: expected from 0 to {trace.span:.0f}, the seconds of {trace.name}"
        )
    end = inf if seconds is None else begin + seconds
    inside = [place for place, each in enumerate(trace.requests) if begin <= each.arrival < end]
    if not inside:
        raise ConfigError(f"--begin {begin:g}: no request of {trace.name} comes before {end:g} s")
    places = {place: new for new, place in enumerate(inside)}
    requests = []
    for place in inside:
        request = trace.requests[place]
        parent = None if request.parent is None else places.get(request.parent)
        requests.append(replace(request, arrival=request.arrival - begin, parent=parent))
    return replace(trace, requests=requests)
