"""What another replica's request holds of a backend."""

from __future__ import annotations

from gateway.scheduling.lease_record import Taken
from gateway.scheduling.load import BackendLoad
from gateway.types import WorkClass


class RemoteLease:
    """Counts in a ledger as a `Lease` does, from `enter` to `leave`.

    Of the streams whose pace is watched it is none: only the replica that relays one sees how it
    gets on.

    Args:
        taken: what is known of it; `began` is kept up to date.

    Attributes:
        load: the ledger that it counts in; None while its backend is not known here.
    """

    __slots__ = ("_taken", "load")

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self.load: BackendLoad | None = None

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
        if taken.began:
            self._end_prefill(load, now, done=False)
            self._decodes(load, 1)

    def first_token(self, now: float) -> BackendLoad | None:
        """The prefill is done.

        Returns:
            Where room came free.
        """
        load, taken = self.load, self._taken
        if taken.began:
            return None
        taken.began = True
        if load is not None:
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
