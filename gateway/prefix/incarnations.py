"""Which incarnation of each backend's cache is the present one."""

from __future__ import annotations

from gateway.prefix.holder import Holder
from gateway.prefix.holdings import Holdings

MAX_REMEMBERED = 4096
"""Epochs remembered of backends that are not here."""


class Incarnations:
    """Replicas agree on an incarnation by its epoch, so epochs only ever rise, also while a backend
    is away.

    Attributes:
        present: by backend; to be read only.
    """

    def __init__(self, holdings: Holdings) -> None:
        self.present: dict[str, Holder] = {}
        self._holdings = holdings
        self._awaited: dict[str, Holder] = {}
        self._epochs: dict[str, int] = {}

    def find(self, id: str) -> Holder | None:
        """That of a backend which is here or awaited."""
        return self.present.get(id) or self._awaited.get(id)

    def add(self, id: str, limit: int) -> tuple[Holder, bool]:
        """A backend is here.

        Args:
            limit: capacity in key bytes, where nothing is known of it yet.

        Returns:
            Its incarnation, and whether it was awaited.

        Raises:
            ValueError: it is here already.
        """
        if id in self.present:
            raise ValueError(f"backend {id!r} is in the index already")
        epoch = self._epochs.pop(id, 0)
        awaited = self._awaited.pop(id, None)
        if awaited is None:
            holder = Holder(id, limit, self._holdings.longest(limit), epoch)
        else:
            holder = awaited
            holder.live = True
        self.present[id] = holder
        return holder, awaited is not None

    def remove(self, id: str) -> None:
        """A backend has gone. Constant time.

        Raises:
            KeyError: it is not here.
        """
        holder = self.present.pop(id)
        self._remember(id, holder.epoch)
        self._holdings.bury(holder)

    def await_backend(self, id: str, limit: int, epoch: int) -> Holder:
        """One that is not matched until its backend is added."""
        epoch = max(epoch, self._epochs.pop(id, 0))
        holder = self._awaited[id] = Holder(id, limit, self._holdings.longest(limit), epoch)
        holder.live = False
        return holder

    def give_up(self) -> None:
        """Forget those that were awaited and have not come. Constant time for each."""
        for id, holder in self._awaited.items():
            self._remember(id, holder.epoch)
            self._holdings.bury(holder)
        self._awaited.clear()

    def begin(self, id: str, epoch: int) -> None:
        """Begin an epoch, unless the backend is as far already. One that is not here begins with it
        when it comes."""
        old = self.present.get(id)
        if old is None:
            awaited = self._awaited.get(id)
            if awaited is not None and awaited.epoch < epoch:
                self._holdings.bury(self._awaited.pop(id))
            self._remember(id, epoch)
        elif old.epoch < epoch:
            new = self.present[id] = old.successor()
            new.epoch = epoch
            self._holdings.bury(old)

    def flush(self) -> None:
        """Begin a new epoch of all that are here; what they held has been cleared."""
        self._awaited.clear()
        for id, old in self.present.items():
            old.live = False
            self.present[id] = old.successor()

    def _remember(self, id: str, epoch: int) -> None:
        epochs = self._epochs
        epochs[id] = max(epoch, epochs.pop(id, 0))
        if len(epochs) > MAX_REMEMBERED:
            del epochs[next(iter(epochs))]
