"""How long KV caches take from engine to engine: learnt from transfers that have ended."""

from __future__ import annotations

from collections.abc import Hashable
from math import exp

from gateway.disagg.shape import KvShape

PRIOR_BANDWIDTH = 3e9
"""Bytes per second that are assumed before anything was seen, where nobody says what there is: 25
Gbit/s, less what is lost."""
SETUP_SECONDS = 5e-3
"""What a transfer takes however little it moves."""
LAYERS = 32
"""Of which a layer-wise transfer has one left when the prompt is computed, at the least."""
_PRIOR_SECONDS = 0.5
"""Transfer time that what is assumed counts for."""
_MEMORY = 30.0
"""Transfer time over which what was seen fades by a factor of e."""


class Bandwidth:
    """Bytes over seconds, as a ratio of fading sums: transfers that wait for each other look slow
    one by one, and only their sums mean something."""

    __slots__ = ("_bytes", "_seconds")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def add(self, size: float, seconds: float) -> None:
        keep = exp(-seconds / _MEMORY)
        self._bytes = self._bytes * keep + size
        self._seconds = self._seconds * keep + seconds

    def shrunk_to(self, prior: float) -> float:
        """Bytes per second, with `prior` counting like half a second of transfer."""
        return (self._bytes + _PRIOR_SECONDS * prior) / (self._seconds + _PRIOR_SECONDS)


class _Transfer:
    __slots__ = ("ahead", "began", "busy", "decode", "during", "prefill", "size")

    def __init__(
        self,
        prefill: str,
        decode: str,
        size: float,
        began: float,
        ahead: float,
        during: float,
        busy: bool,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.size = size
        self.began = began
        self.ahead = ahead
        self.during = during
        self.busy = busy


class Links:
    """The network between prefill and decode engines, as the gateway comes to know it.

    It sees when a prefill ends and when the decode engine's first token comes; what lies between
    is the transfer and a step. Each engine's own card is measured, both directions apart, and leans
    on all others' until enough was seen.

    A decode engine that prefills too lets what has come wait for the end of that. Such a gap says
    only that the network is no slower, and counts only where that is news: taken for the transfer,
    seconds of prefill would make a fast network look a hundred times slower than it is.

    Args:
        shape: of the KV cache, or its bytes per token where that is all there is to it.
        fixed: bytes per second where they are known; nothing is learnt then.
        prior: bytes per second that are assumed before anything was seen; may be changed.
    """

    def __init__(
        self,
        shape: KvShape | float,
        *,
        fixed: float | None = None,
        prior: float = PRIOR_BANDWIDTH,
    ) -> None:
        self.shape = shape if isinstance(shape, KvShape) else KvShape(per_token=shape)
        self.prior = prior
        self._fixed = fixed
        self._all = Bandwidth()
        self._into: dict[str, Bandwidth] = {}
        self._under_way: dict[Hashable, _Transfer] = {}
        self._sending: dict[str, float] = {}
        self._receiving: dict[str, float] = {}
        self.moved = 0.0
        """Bytes, of transfers that have ended."""

    def bandwidth(self, decode: str) -> float:
        """Bytes per second into an engine."""
        if self._fixed is not None:
            return self._fixed
        own = self._into.get(decode)
        return self.usual_bandwidth if own is None else own.shrunk_to(self.usual_bandwidth)

    @property
    def usual_bandwidth(self) -> float:
        """Bytes per second into an engine that nothing is known of."""
        return self._all.shrunk_to(self.prior) if self._fixed is None else self._fixed

    def seconds(self, prefill: str, decode: str, tokens: float, during: float = 0.0) -> float:
        """From the end of a prefill to when its KV cache is where it is to be used.

        Args:
            tokens: that the decode engine lacks.
            during: seconds of the prefill in which what is computed is sent already; 0 for
                connectors that wait for its end.
        """
        if tokens <= 0.0:
            return 0.0
        bandwidth = self.bandwidth(decode)
        own = self.shape.bytes(tokens) / bandwidth
        if during > 0.0:
            own = max(own / LAYERS, own - during)
        ahead = max(self._sending.get(prefill, 0.0), self._receiving.get(decode, 0.0))
        return SETUP_SECONDS + ahead / bandwidth + own

    def began(
        self,
        key: Hashable,
        prefill: str,
        decode: str,
        tokens: float,
        now: float,
        during: float = 0.0,
        *,
        busy: bool = False,
    ) -> None:
        """A prefill has ended, and what the decode engine lacks is on its way.

        Args:
            during: as for `seconds`.
            busy: the decode engine has prefills of its own to do.
        """
        size = self.shape.bytes(tokens)
        ahead = max(self._sending.get(prefill, 0.0), self._receiving.get(decode, 0.0))
        self._under_way[key] = _Transfer(prefill, decode, size, now, ahead, during, busy)
        self._sending[prefill] = self._sending.get(prefill, 0.0) + size
        self._receiving[decode] = self._receiving.get(decode, 0.0) + size

    def ended(
        self, key: Hashable, now: float, step: float = 0.0, *, busy: bool = False
    ) -> float | None:
        """The decode engine's first token has come.

        Args:
            step: seconds of that token itself.
            busy: the decode engine has prefills of its own to do.

        Returns:
            Seconds that the transfer took, None when it is not known.
        """
        transfer = self._strike(key)
        if transfer is None:
            return None
        gap = max(0.0, now - transfer.began - step)
        self.moved += transfer.size
        if transfer.size > 0.0:
            seconds = max(1e-6, gap + transfer.during - SETUP_SECONDS)
            size = transfer.size + transfer.ahead
            waited = busy or transfer.busy
            if waited and size <= seconds * self.bandwidth(transfer.decode):
                return gap
            self._all.add(size, seconds)
            self._into.setdefault(transfer.decode, Bandwidth()).add(size, seconds)
        return gap

    def dropped(self, key: Hashable) -> None:
        """It failed or was cancelled. Nothing happens when it is not known."""
        self._strike(key)

    def removed(self, id: str) -> None:
        """An engine is gone."""
        self._into.pop(id, None)

    def _strike(self, key: Hashable) -> _Transfer | None:
        transfer = self._under_way.pop(key, None)
        if transfer is not None:
            _less(self._sending, transfer.prefill, transfer.size)
            _less(self._receiving, transfer.decode, transfer.size)
        return transfer


def _less(sizes: dict[str, float], id: str, size: float) -> None:
    left = sizes[id] - size
    if left > 0.5:
        sizes[id] = left
    else:
        del sizes[id]
