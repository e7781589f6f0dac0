"""Simulated engines of given speeds behind a router, with rates learnt from what can be seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from gateway.estimates.backend_rates import BackendRates
from gateway.estimates.rates import Rates
from gateway.estimates.shape import EngineShape
from loadtests.sim.engine import Engine
from loadtests.sim.profile import DEFAULT, load
from loadtests.sim.sequence import Request
from loadtests.sim.timeline import VirtualTimeline

PROFILE = load(DEFAULT).replace(kv_tokens=400_000)


class Watched:
    """One request, whose progress is told to the rates of its backend."""

    def __init__(self, rates: BackendRates, request: Request, done: Callable[[], None]) -> None:
        self.rates = rates
        self.request = request
        self.done = done

    def on_first_token(self, now: float) -> None:
        self.rates.first_token(self, now)

    def on_token(self, now: float) -> None:
        pass

    def on_finish(self, now: float) -> None:
        self.rates.finished(self, now, self.request.output_tokens)
        self.done()


class Unseen(Watched):
    """One whose first token cannot be seen."""

    def on_first_token(self, now: float) -> None:
        pass


class Fleet:
    """
    Args:
        slower: per engine, how many times as long as the profile it takes.
        load: arriving work, as a share of what the engines can do, roughly.
        streamed: share of the requests that are streamed.
        misjudged: share of the requests of which a tenth is believed to be all there is to
            prefill, as when a cached prefix has gone.

    Each request goes to the engine with the fewest in flight, weighted by its learnt factor.
    """

    def __init__(
        self,
        slower: Sequence[float],
        load: float,
        seed: int,
        *,
        streamed: float = 1.0,
        misjudged: float = 0.0,
    ) -> None:
        self.timeline = VirtualTimeline()
        self.rates = Rates(EngineShape())
        self.engines = []
        for number, factor in enumerate(slower):
            self.rates.add(str(number), 400_000.0)
            self.engines.append(Engine(PROFILE, self.timeline, unit_tokens=512))
            self.slow(number, factor)
        self.in_flight = [0] * len(slower)
        self._random = random.Random(seed)
        self._streamed = streamed
        self._misjudged = misjudged
        mean = sum(self._work(*self._sizes()) for _ in range(2000)) / 2000
        self._gap = mean / (load * sum(1 / factor for factor in slower))
        self._arrive()
        self._tick()

    def slow(self, number: int, factor: float) -> None:
        """Let an engine take `factor` times as long as the profile, from its next step on."""
        timing = PROFILE.timing.faster(1 / factor)
        self.engines[number].profile = PROFILE.replace(timing=msgspec.to_builtins(timing))

    def factors(self) -> list[tuple[float, float]]:
        return [(self.rates[id].prefill, self.rates[id].decode) for id in self.rates]

    def run(self, seconds: float) -> None:
        self.timeline.run(self.timeline.time() + seconds)

    def _tick(self) -> None:
        now = self.timeline.time()
        self.rates.refresh(now)
        self.timeline.call_at(now + 1.0, self._tick)

    def _sizes(self) -> tuple[int, int]:
        """Prompt and output tokens: chats, documents and tools."""
        kind = self._random.random()
        if kind < 0.6:
            return self._random.randint(50, 2_000), self._random.randint(50, 500)
        if kind < 0.8:
            return self._random.randint(4_000, 20_000), self._random.randint(100, 400)
        return self._random.randint(500, 8_000), self._random.randint(2, 20)

    @staticmethod
    def _work(prompt: int, output: int) -> float:
        return EngineShape().prefill(prompt, prompt) + output * 1e-3

    def _arrive(self) -> None:
        prompt, output = self._sizes()
        number = min(range(len(self.engines)), key=self._delay)
        rates = self.rates[str(number)]
        self.in_flight[number] += 1

        def done() -> None:
            self.in_flight[number] -= 1

        request = Request(prompt, output)
        streamed = self._random.random() < self._streamed
        listener = (Watched if streamed else Unseen)(rates, request, done)
        now = self.timeline.time()
        believed = prompt // 10 if self._random.random() < self._misjudged else prompt
        rates.dispatched(listener, now, prompt, believed, streamed=streamed)
        self.engines[number].submit(request, listener)
        self.timeline.call_at(now + self._random.expovariate(1 / self._gap), self._arrive)

    def _delay(self, number: int) -> float:
        rates = self.rates[str(number)]
        return (1 + self.in_flight[number]) * rates.prefill
