"""What another replica's request holds of a backend."""

from __future__ import annotations

from gateway.scheduling.lease_record import Taken
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.speeds import Speeds
from gateway.types import WorkClass

_JITTER = 0.02
_JITTER_SHARE = 0.1
"""By how much, in seconds or of the time itself, the way of one record may take longer than that of
another. Where it is more, when things are heard says nothing of when they happened."""


class RemoteLease:
    """Counts in a ledger as a `Lease` does, from `enter` to `leave`.

    Of the streams whose pace is watched it is none: only the replica that relays one sees how it
    gets on.

    Args:
        taken: what is known of it; `began` is kept up to date.
        speeds: learn from it what its backend does in a second; None where nothing is learnt.

    Attributes:
        load: the ledger that it counts in; None while its backend is not known here.
    """

    __slots__ = ("_speeds", "_taken", "_told_at", "load")

    def __init__(self, taken: Taken, speeds: Speeds | None) -> None:
        self._taken = taken
        self._speeds = speeds
        self._told_at = 0.0
        self.load: BackendLoad | None = None

    @property
    def backend_id(self) -> str:
        """Only while it counts."""
        assert self.load is not None, "it is at no backend that is known"
        return self.load.id

    @property
    def prompt_tokens(self) -> int:
        return self._taken.prompt_tokens

    @property
    def uncached_tokens(self) -> int:
        return self._taken.uncached_tokens

    @property
    def backend(self) -> int:
        return self._taken.backend

    def enter(self, load: BackendLoad, now: float) -> None:
        """Begin to count, if it does not yet."""
        if self.load is not None:
            return
        self.load, taken = load, self._taken
        own = load.of(WorkClass.PREFILL if taken.prefill else WorkClass.DECODE)
        load.take(
            self,
            own,
            taken.prompt_tokens,
            taken.uncached_tokens,
            taken.micros / 1e6,
            now - taken.age / 1e3,
            taken.anchor,
        )
        own.elsewhere += 1
        if self._speeds is not None and not taken.began and not taken.age:
            # Its first token is heard of late, so it must not hold up what is known of others'.
            self._speeds.dispatched(self, streamed=False)
            self._told_at = now
        if taken.began:
            self._end_prefill(load, now, done=False)
            self._decodes(load, 1)

    def first_token(self, now: float, age: float | None = None) -> BackendLoad | None:
        """The prefill is done.

        Args:
            age: seconds since it was taken, by the clock of who took it; None when it is not known.

        Returns:
            Where room came free.
        """
        load, taken = self.load, self._taken
        if taken.began:
            return None
        taken.began = True
        if load is not None:
            if self._speeds is not None:
                if age is not None and self._in_time(now - self._told_at, age):
                    self._speeds.first_token(self)
                else:
                    self._speeds.dropped(self)
            self._end_prefill(load, now, done=True)
            self._decodes(load, 1)
        return load

    def leave(self, now: float) -> BackendLoad | None:
        """Count no longer.

        Returns:
            Where room came free.
        """
        load, taken = self.load, self._taken
        if load is None:
            return None
        if self._speeds is not None:
            self._speeds.dropped(self)
        own = load.of(WorkClass.PREFILL if taken.prefill else WorkClass.DECODE)
        if taken.began:
            self._decodes(load, -1)
        else:
            self._end_prefill(load, now, done=False)
        load.give_back(self, own)
        own.elsewhere -= 1
        self.load = None
        return load

    def _end_prefill(self, load: BackendLoad, now: float, *, done: bool) -> None:
        own = load.of(WorkClass.PREFILL if self._taken.prefill else WorkClass.DECODE)
        load.finish_prefill(self, own, self._taken.uncached_tokens, now, done=done)

    @staticmethod
    def _decodes(load: BackendLoad, change: int) -> None:
        load.decoding += change
        load.decoding_elsewhere += change

    @staticmethod
    def _in_time(heard: float, age: float) -> bool:
        """Whether its first token was heard of as long after its beginning as it came."""
        return heard >= age / 2 and abs(heard - age) <= max(_JITTER, _JITTER_SHARE * age)
