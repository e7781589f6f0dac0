"""How a simulated decode engine gets the KV cache of a prompt that another one has computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from loadtests.sim.engine import Engine
from loadtests.sim.legs import NOTIFIES, Leg, Protocol
from loadtests.sim.network import Network
from loadtests.sim.sequence import Fetch, Sequence
from loadtests.sim.timeline import Timeline

READ = "/simulator/kv/read"
LET_GO = "/simulator/kv/let-go"
"""Routes of the prefill engine: in place of RDMA and of the messages between real engines."""


@dataclass(slots=True)
class Fetcher:
    """
    Args:
        kv_bytes: per token.
        recompute: compute here what cannot be read; the request fails otherwise.
        overlaps: each layer is sent as soon as it is computed.
    """

    protocol: Protocol
    engine: Engine
    network: Network
    timeline: Timeline
    kv_bytes: float
    recompute: bool
    overlaps: bool
    _client: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(trust_env=False, verify=False, timeout=None)
    )
    _tasks: dict[Sequence, asyncio.Task[None]] = field(default_factory=dict)

    def fetch(self, leg: Leg, prompt: str, on_failed: Callable[[str], None]) -> Fetch:
        """What an engine does once it has reserved the blocks.

        Args:
            prompt: digest of what the cache is of.
        """

        def begin(sequence: Sequence) -> None:
            task = asyncio.create_task(self._run(leg, prompt, sequence, on_failed))
            self._tasks[sequence] = task
            task.add_done_callback(lambda _: self._tasks.pop(sequence, None))

        return begin

    def give_up(self, sequence: Sequence) -> None:
        """The request is over."""
        task = self._tasks.get(sequence)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """The engine ends, and what is being fetched with it: nobody is told."""
        await self._client.aclose()
        for sequence in list(self._tasks):
            self.give_up(sequence)

    async def let_go(self, leg: Leg) -> None:
        """Tell the prefill engine that nobody will read."""
        if self.protocol in NOTIFIES and not self._client.is_closed:
            try:
                await self._client.post(leg.source + LET_GO, json={"key": leg.key})
            except httpx.HTTPError:
                return  # its lease does it

    async def _run(
        self, leg: Leg, prompt: str, sequence: Sequence, on_failed: Callable[[str], None]
    ) -> None:
        try:
            tokens = await self._read(leg, prompt, sequence)
        except asyncio.CancelledError:
            await asyncio.shield(self.let_go(leg))
            raise
        except (httpx.HTTPError, httpx.InvalidURL, LookupError) as error:
            if not self.recompute:
                on_failed(str(error))
                return
            tokens = 0
        self.engine.received(sequence, tokens)
        come = min(tokens, sequence.target - 1)
        sequence.cached_tokens = max(sequence.cached_tokens, come)

    async def _read(self, leg: Leg, prompt: str, sequence: Sequence) -> int:
        """Returns: tokens that have come.

        Raises:
            httpx.HTTPError, LookupError: they cannot be had.
        """
        wanted = {"key": leg.key, "prompt": prompt, "shown": leg.shown}
        answer = await self._client.post(leg.source + READ, json=wanted)
        if not answer.is_success:
            raise LookupError(answer.text)
        offer = answer.json()
        lacks = max(0, offer["tokens"] - sequence.computed) * self.kv_bytes
        now = self.timeline.time()
        during = offer["seconds"] if self.overlaps else 0.0
        arrival = self.network.send(leg.source, "here", lacks, now, during)
        arrived = asyncio.Event()
        timer = self.timeline.call_at(arrival, arrived.set)
        try:
            await arrived.wait()
        finally:
            timer.cancel()
        done = await self._client.post(leg.source + LET_GO, json={"key": leg.key})
        if not done.json()["kept"]:
            raise LookupError(f"{leg.key} was kept for too short a time")
        return int(offer["tokens"])
