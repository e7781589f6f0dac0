"""Faults at random: what, where, when and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from loadtests.chaos.faults import OF_PROCESSES, Fault
from loadtests.chaos.fleet import Fleet, Handle

PAUSE = 0.15
"""Seconds from one fault to the next, on average."""
SICK_SHARE = 0.5
"""Of the engines, at most so many have something wrong with them at a time."""
_SECONDS = {Fault.FREEZE: 1.0, Fault.KILL: 1.0, Fault.HANG: 0.6}
_USUAL_SECONDS = 0.8
_RESTART_SECONDS = 0.5
"""How long a process may take to come back: until then it counts as ill."""


class Storm:
    """Runs until it is cancelled; then everything is put right.

    Attributes:
        begun: how often each fault was.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.begun: Counter[Fault] = Counter()
        self._fleet = fleet
        self._random = Random(seed)
        self._spells: dict[Handle, asyncio.Task[None]] = {}

    async def run(self) -> None:
        most = max(1, int(len(self._fleet.engines) * SICK_SHARE))
        kinds: list[Fault] = []
        try:
            while True:
                await asyncio.sleep(self._random.expovariate(1 / PAUSE))
                if not kinds:  # each in its turn, so that short runs have all of them too
                    kinds = list(Fault)
                    self._random.shuffle(kinds)
                well = [engine for engine in self._fleet.engines if engine not in self._spells]
                if len(self._fleet.engines) - len(well) >= most:
                    continue
                self._begin(self._random.choice(well), kinds.pop())
        finally:
            for spell in self._spells.values():
                spell.cancel()
            await asyncio.gather(*self._spells.values(), return_exceptions=True)

    def _begin(self, engine: Handle, fault: Fault) -> None:
        self.begun[fault] += 1
        task = asyncio.get_running_loop().create_task(self._spell(engine, fault))
        self._spells[engine] = task
        task.add_done_callback(lambda _: self._spells.pop(engine))

    async def _spell(self, engine: Handle, fault: Fault) -> None:
        random = self._random
        share = 1.0 if fault is Fault.SICK else random.choice((0.1, 0.5, 1.0))
        engine.begin(fault, share)
        try:
            if fault is not Fault.RESTART:
                seconds = _SECONDS.get(fault, _USUAL_SECONDS)
                await asyncio.sleep(seconds * random.uniform(0.5, 1.5))
            else:
                await asyncio.sleep(_RESTART_SECONDS)
        finally:
            engine.end()
        if fault in OF_PROCESSES:
            await asyncio.sleep(_RESTART_SECONDS)
