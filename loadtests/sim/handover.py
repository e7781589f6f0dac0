"""One request on two engines: one computes the prompt, the other generates."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from loadtests.sim.engine import Engine
from loadtests.sim.network import Network
from loadtests.sim.sequence import Listener, Request, Sequence
from loadtests.sim.timeline import Timeline


class HandoverListener(Listener, Protocol):
    """Told of the progress of both legs; first token and end are those of the decode leg."""

    def on_prefilled(self, now: float) -> None:
        """The prefill leg has ended: its engine has nothing more to do than to keep the blocks."""


class Handover:
    """Pulled: the decode leg begins when the prefill leg has ended, and its engine fetches what it
    lacks. Pushed: both begin at once, and each layer is sent as soon as it is computed.

    Where nothing can be fetched any more because the prefill engine's lease is over, the decode
    engine computes the prompt itself.

    Args:
        kv_bytes: per token.
        pushed: whether both legs begin at once.

    Attributes:
        moved: tokens that were sent over the network.
        lost: whether there was nothing left to fetch.
    """

    def __init__(
        self,
        request: Request,
        prefill: Engine,
        decode: Engine,
        network: Network,
        timeline: Timeline,
        listener: HandoverListener,
        *,
        kv_bytes: float,
        pushed: bool = False,
    ) -> None:
        self._request = request
        self._prefill = prefill
        self._decode = decode
        self._network = network
        self._timeline = timeline
        self._listener = listener
        self._kv_bytes = kv_bytes
        self._pushed = pushed
        self.moved = 0
        self.lost = False
        self._reserved = self._prefilled = False
        leg = replace(request, output_tokens=1)
        self.prefill_leg = prefill.submit(leg, _PrefillLeg(self), keeps=True)
        self.decode_leg: Sequence | None = None
        if pushed:
            self._begin_decode()

    def _begin_decode(self) -> None:
        self.decode_leg = self._decode.submit(self._request, self._listener, fetch=self._fetch)

    def abort(self) -> None:
        """Stop both legs and let go of what is kept."""
        if not self._prefill.abort(self.prefill_leg):
            self._prefill.fetched(self.prefill_leg)
        if self.decode_leg is not None:
            self._decode.abort(self.decode_leg)

    def prefilled(self, now: float) -> None:
        self._prefilled = True
        if self.decode_leg is None:
            self._begin_decode()
        else:
            self._move()
        self._listener.on_prefilled(now)

    def _fetch(self, sequence: Sequence) -> None:
        self._reserved = True
        self._move()

    def _move(self) -> None:
        """Send what the decode engine lacks, once it is computed and has a place to go to."""
        leg = self.decode_leg
        if leg is None or not (self._reserved and self._prefilled):
            return
        now = self._timeline.time()
        if not self._prefill.keeps(self.prefill_leg):
            self.lost = True
            self._decode.received(leg, 0)
            return
        self.moved = max(0, leg.target - leg.computed)
        during = 0.0
        if self._pushed and self.prefill_leg.admitted is not None:
            during = now - self.prefill_leg.admitted
        size = self.moved * self._kv_bytes
        end = self._network.send(self._prefill, self._decode, size, now, during)
        self._timeline.call_at(end, self._arrive)

    def _arrive(self) -> None:
        leg = self.decode_leg
        assert leg is not None
        self.lost = not self._prefill.fetched(self.prefill_leg)
        self._decode.received(leg, 0 if self.lost else leg.target)


class _PrefillLeg:
    """Its one token is thrown away: the decode leg generates it again."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def on_first_token(self, now: float) -> None: ...
    def on_token(self, now: float) -> None: ...

    def on_finish(self, now: float) -> None:
        self._handover.prefilled(now)
