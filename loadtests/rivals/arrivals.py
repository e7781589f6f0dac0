"""How many requests each backend was sent lately."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from policies.base import Candidate


class Arrivals:
    """Requests per backend within a window of time, the "QPS" that some routers go by.

    Args:
        window: seconds.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._recent: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def add(self, now: float, backend: str) -> None:
        self._recent.append((now, backend))
        self._counts[backend] += 1

    def count(self, now: float, backend: str) -> int:
        recent = self._recent
        while recent and recent[0][0] <= now - self._window:
            self._counts[recent.popleft()[1]] -= 1
        return self._counts[backend]

    def fewest(self, now: float, candidates: Sequence[Candidate]) -> Candidate:
        """The candidate with the fewest, the first of several."""
        return min(candidates, key=lambda candidate: self.count(now, candidate.id))
