"""The way of KV caches between engines."""

from __future__ import annotations

from collections.abc import Hashable

GBPS = 1e9 / 8
"""Bytes per second."""


class Network:
    """Each engine has one card that sends and one that receives, both of one bandwidth; a transfer
    has both ends for itself, and those that want the same end go in the order in which they came.

    Args:
        bandwidth: bytes per second.
        setup: seconds that a transfer takes before its first byte.
        layers: of the model. A layer-wise transfer sends each as soon as it is computed.
    """

    def __init__(self, bandwidth: float, setup: float = 5e-3, layers: int = 32) -> None:
        self.bandwidth = bandwidth
        self.setup = setup
        self.layers = layers
        self.sent = 0.0
        """Bytes."""
        self._free_at: dict[tuple[str, Hashable], float] = {}

    def send(
        self, source: Hashable, target: Hashable, size: float, now: float, during: float = 0.0
    ) -> float:
        """Send what has just been computed.

        Args:
            size: bytes.
            during: seconds for which it was sent while it was computed: all but its last layer can
                be over by now. The cards count as free at that time.

        Returns:
            When it is all there.
        """
        self.sent += size
        left = size
        if during > 0.0:
            left = max(size / self.layers, size - self.bandwidth * during)
        ends = ("out", source), ("in", target)
        begin = max(now, *(self._free_at.get(end, 0.0) for end in ends))
        done = begin + self.setup + left / self.bandwidth
        for end in ends:
            self._free_at[end] = done
        return done
