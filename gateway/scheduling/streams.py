"""The streams of one backend, and how much delay each can bear before it misses its pace.

A prefill stalls every stream beside it: while it runs, a step takes as long as a chunk of prompt,
and not as long as a token. A stream that has run undisturbed is ahead of its pace and can bear
that; one that has just begun, or is about to end, cannot make it up. The gateway sees every token,
so it knows how far ahead each stream is; how many tokens it has still to come it knows only as a
distribution.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from typing import Protocol

REMEMBERED = 2000
"""Answers whose lengths are remembered."""
_PARTS = 8
"""Equally likely remainders that stand for the distribution of what is still to come."""
_FRESH = 0.03
"""Seconds for which a look at the streams is good."""
_AIM = 0.9
"""Share of the pace that is aimed at: estimates are not exact, and steps are not even."""
_LEAST_SPARE = 0.005
"""Seconds that a stream gains per token at least, even where steps take as long as the pace: it
is what keeps a slow backend from counting all of its streams as about to miss."""


class OutputLengths:
    """How long the last answers were, and so how much of one is still to come.

    Starts out with a few lengths from 10 to 2,500 tokens, the spread of chats.
    """

    __slots__ = ("_by_age", "_sorted")

    def __init__(self) -> None:
        start = [10 * round(1.2**power) for power in range(30)]
        self._by_age = deque(start)
        self._sorted = sorted(start)

    def learn(self, tokens: int) -> None:
        """An answer has ended."""
        self._by_age.append(tokens)
        insort(self._sorted, tokens)
        if len(self._by_age) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._by_age.popleft())]

    def left(self, made: int) -> list[int]:
        """Tokens still to come of an answer that has `made` so far: equally likely numbers,
        ascending."""
        lengths = self._sorted
        first = bisect_right(lengths, made)
        longer = len(lengths) - first
        if not longer:
            # Longer than any: about to end, for all that is known.
            return [made // 10] * _PARTS
        return [
            lengths[first + longer * (2 * part + 1) // (2 * _PARTS)] - made
            for part in range(_PARTS)
        ]


class _Stream:
    """An answer that is being generated.

    Attributes:
        began: when its first token came.
        progress: tells the tokens generated so far.
    """

    __slots__ = ("began", "lengths", "progress")

    def __init__(self, began: float, lengths: OutputLengths, progress: Callable[[], int]) -> None:
        self.began = began
        self.lengths = lengths
        self.progress = progress


class Answer(Protocol):
    """What a stream is known by."""

    @property
    def began(self) -> float: ...


class Engine(Protocol):
    """What the streams' pace depends on."""

    @property
    def pace(self) -> float | None: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def prefill_rate(self) -> float: ...
    @property
    def chunk_tokens(self) -> int: ...
    @property
    def step_seconds(self) -> float: ...
    @property
    def stream_seconds(self) -> float: ...
    @property
    def context_seconds(self) -> float: ...


class Streams:
    """
    Args:
        engine: the backend's ledger, for how long its steps take.
    """

    __slots__ = ("_bearable", "_engine", "_looked", "_streams")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: dict[object, _Stream] = {}
        self._bearable: list[float] = []
        self._looked = -_FRESH

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, answer: Answer, lengths: OutputLengths, progress: Callable[[], int]) -> None:
        self._streams[answer] = _Stream(answer.began, lengths, progress)
        self._looked = -_FRESH

    def remove(self, answer: Answer) -> None:
        """Nothing happens when it was never added."""
        if self._streams.pop(answer, None) is not None:
            self._looked = -_FRESH

    def spoilt(self, now: float, before: float, seconds: float) -> float:
        """How many streams a prefill would make miss their pace, as an expectation.

        Args:
            before: seconds of prefill that stall them anyway.
            seconds: of the prefill.
        """
        if not self._streams or self._engine.pace is None:
            return 0.0
        if now - self._looked >= _FRESH:
            self._bearable = self._look(now, _AIM * self._engine.pace)
            self._looked = now
        bearable = self._bearable
        first = bisect_left(bearable, before)
        return (bisect_left(bearable, before + seconds, first) - first) / _PARTS

    def _look(self, now: float, pace: float) -> list[float]:
        """For each stream and each of its possible lengths the longest stall that it can bear,
        ascending; without those that can bear any."""
        engine = self._engine
        step = (
            engine.step_seconds
            + engine.stream_seconds * len(self._streams)
            + engine.context_seconds * engine.context_tokens
        )
        spare = max(pace - step, _LEAST_SPARE)
        # Seconds by which each token comes late while a prefill runs: a stall is no pause.
        lateness = engine.chunk_tokens / engine.prefill_rate + step - pace
        bearable = []
        for stream in self._streams.values():
            made = max(1, stream.progress())
            ahead = pace * (made - 1) - (now - stream.began)
            bearable += [
                ahead + spare * left
                for left in stream.lengths.left(made)
                if left * lateness > ahead
            ]
        bearable.sort()
        return bearable
