"""When all is well again, all must serve again, and nobody may have to help."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice

from loadtests.chaos.client import Client, End, Seen
from loadtests.chaos.fleet import Fleet
from loadtests.chaos.mix import patient

LIMIT = 60.0
"""Seconds: what was put out for failing may be left in peace for a while, not for ever."""
_AT_ONCE = 12
_ROUNDS = 5
"""Without a failure, at the end."""
_PAUSE = 0.1


@dataclass(slots=True, frozen=True)
class Recovery:
    """
    Attributes:
        seen: the requests that it took.
        seconds: until every engine had served and none failed any more; None when that never was.
    """

    seen: list[Seen]
    seconds: float | None


async def recover(fleet: Fleet, port: int, seed: int) -> Recovery:
    """Send a little traffic until it shows that all engines serve.

    Args:
        port: of the gateway.
    """
    wanted = {engine.incarnations[-1] for engine in fleet.engines}
    client, demands = Client(port), patient(seed)
    seen: list[Seen] = []
    good = 0
    began = time.monotonic()
    while time.monotonic() - began < LIMIT:
        some = await asyncio.gather(*map(client.send, islice(demands, _AT_ONCE)))
        seen += some
        whole = all(each.ended_by is End.WHOLE and each.reading.error is None for each in some)
        good = good + 1 if whole else 0
        wanted -= {each.reading.incarnation for each in some}
        if not wanted and good >= _ROUNDS:
            client.close()
            return Recovery(seen, time.monotonic() - began)
        await asyncio.sleep(_PAUSE)
    client.close()
    return Recovery(seen, None)
