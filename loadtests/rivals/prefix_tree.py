"""The index of a router that guesses what engines hold from where it sent requests.

Chained block hashes stand for whole prefixes, so the tree is a map from hash to owners. It knows
nothing of what engines evict; that is the point of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator

from gateway.types import HASH_BYTES, Chain


class PrefixTree:
    """Which backends were sent which prefixes."""

    def __init__(self) -> None:
        self._owners: dict[bytes, dict[str, None]] = {}
        self._held: dict[str, OrderedDict[bytes, None]] = {}

    def match(self, chain: Chain, among: Container[str] | None = None) -> tuple[int, list[str]]:
        """How many leading blocks are known, and who was sent all of them, the earliest first.

        Args:
            among: only these backends count, and the match ends where none of them is left.
        """
        blocks, owners = 0, []
        for hash in _blocks(chain):
            here = list(self._owners.get(hash, ()))
            if among is not None:
                here = [backend for backend in here if backend in among]
            if not here:
                break
            blocks, owners = blocks + 1, here
        return blocks, owners

    def insert(self, chain: Chain, backend: str) -> None:
        """Note that the backend was sent this prompt."""
        held = self._held.setdefault(backend, OrderedDict())
        # From the end, so that the beginning of a prompt is the last of it to be forgotten.
        for hash in reversed(list(_blocks(chain))):
            self._owners.setdefault(hash, {})[backend] = None
            held[hash] = None
            held.move_to_end(hash)

    def trim(self, most_blocks: int) -> None:
        """Forget what each backend was sent longest ago, down to `most_blocks`."""
        for backend, held in self._held.items():
            while len(held) > most_blocks:
                hash, _ = held.popitem(last=False)
                owners = self._owners[hash]
                del owners[backend]
                if not owners:
                    del self._owners[hash]


def _blocks(chain: Chain) -> Iterator[bytes]:
    return (chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES))
