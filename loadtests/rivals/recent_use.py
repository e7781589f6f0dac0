"""What one backend was asked for within a window of time, and which of its blocks are oldest."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice

from gateway.types import HASH_BYTES, Chain


@dataclass(frozen=True, slots=True)
class _Request:
    at: float
    prefill_seconds: float
    prompt_tokens: float
    uncached_tokens: float


@dataclass(slots=True)
class _Block:
    last_used: float
    uses: int


class RecentUse:
    """Sums over the requests of the window, and blocks in the order of their last use.

    Args:
        window: seconds.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._requests: deque[_Request] = deque()
        self._prefill_seconds = 0.0
        self._prompt_tokens = 0.0
        self._uncached_tokens = 0.0
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._capacity = float("inf")

    def add(
        self,
        now: float,
        chain: Chain,
        prefill_seconds: float,
        prompt_tokens: float,
        uncached_tokens: float,
    ) -> None:
        """Count a request that is sent there now."""
        self._requests.append(_Request(now, prefill_seconds, prompt_tokens, uncached_tokens))
        self._prefill_seconds += prefill_seconds
        self._prompt_tokens += prompt_tokens
        self._uncached_tokens += uncached_tokens
        # From the end, so that the beginning of a prompt is the last of it to go.
        for at in range(len(chain) - HASH_BYTES, -1, -HASH_BYTES):
            block = self._blocks.setdefault(chain[at : at + HASH_BYTES], _Block(now, 0))
            block.uses = block.uses + 1 if self._recent(block, now) else 1
            block.last_used = now
            self._blocks.move_to_end(chain[at : at + HASH_BYTES])
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def prefill_seconds(self, now: float) -> float:
        """Prefill of what was not cached."""
        self._expire(now)
        return self._prefill_seconds

    def miss_rate(self, now: float) -> float:
        """Share of the prompts that was not cached; 1 when there were none."""
        self._expire(now)
        return self._uncached_tokens / self._prompt_tokens if self._prompt_tokens else 1.0

    def victims(self, now: float, *, new_blocks: float, capacity: float) -> int:
        """How often those blocks were used within the window that make room for `new_blocks`.

        Args:
            capacity: blocks that the backend holds at most.
        """
        self._capacity = capacity
        going = len(self._blocks) + new_blocks - capacity
        if going <= 0:
            return 0
        oldest = islice(self._blocks.values(), int(going))
        return sum(block.uses for block in oldest if self._recent(block, now))

    def _recent(self, block: _Block, now: float) -> bool:
        return now - block.last_used < self._window

    def _expire(self, now: float) -> None:
        requests = self._requests
        while requests and now - requests[0].at >= self._window:
            gone = requests.popleft()
            self._prefill_seconds -= gone.prefill_seconds
            self._prompt_tokens -= gone.prompt_tokens
            self._uncached_tokens -= gone.uncached_tokens
        if not requests:
            # What adding and subtracting leaves behind is not load.
            self._prefill_seconds = self._prompt_tokens = self._uncached_tokens = 0.0
