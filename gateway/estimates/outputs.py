"""How many tokens a request will generate, from what others like it have.

A prompt template decides it more than anything else: tools answer in a handful of tokens, chats in
hundreds. So the estimate is that of the longest prefix that enough requests have shared, then that
of the tenant's requests on the same route with the same cap, then the model's.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from operator import mul

from gateway.types import HASH_BYTES, Chain

TYPICAL_OUTPUT = 300
"""Output tokens expected while nothing is known."""
ENOUGH = 5
"""Answers after which a group is believed."""
MAX_GROUPS = 16_384
MAX_CLIENTS = 4_096

_MEMORY = 200
"""Answers that a group remembers: about as many as it had last, the older ones fading."""
_MAX_SURPRISE = 8.0
"""An answer longer than any before counts for at most this many times the mean so far: one that
ran away says little about the next, and would make every backend look busy for long."""

_BUCKETS = 34
_LOWS = tuple(
    (((2 + half) << octave) + 1) // 2 for octave in range(_BUCKETS // 2) for half in (0, 1)
)
_HIGHS = (*_LOWS[1:], 1 << (_BUCKETS // 2))
_MIDDLES = tuple((low + high - 1) / 2 for low, high in zip(_LOWS, _HIGHS, strict=True))


def _bucket(tokens: int) -> int:
    """Two buckets an octave: from 2**n, and from 1.5 * 2**n."""
    if tokens < 2:
        return 0
    octave = tokens.bit_length() - 1
    return min(2 * octave + (tokens >> (octave - 1) & 1), _BUCKETS - 1)


class _Group:
    """The answers of requests that have something in common."""

    __slots__ = ("answers", "counts", "longest", "mean")

    def __init__(self) -> None:
        self.answers = 0
        self.mean = 0.0
        self.longest = 0
        self.counts = bytearray(_BUCKETS)

    def add(self, tokens: int, cap: float) -> None:
        if tokens >= cap and tokens < (self.mean if self.answers else TYPICAL_OUTPUT):
            # Cut short: all that is known is that it would have been longer.
            return
        if self.answers >= _MEMORY:
            self.counts = bytearray(count >> 1 for count in self.counts)
            self.answers = sum(self.counts)
            self.longest = _HIGHS[max(at for at, count in enumerate(self.counts) if count)]
        counted, at = float(tokens), _bucket(tokens)
        if tokens > self.longest:
            self.longest = tokens
            if self.answers >= ENOUGH and not any(self.counts[at:]):
                counted = min(counted, _MAX_SURPRISE * self.mean)
        self.answers += 1
        self.counts[at] += 1
        self.mean += (counted - self.mean) / self.answers

    def mean_within(self, cap: float) -> float:
        """Of what would be left of the answers under a cap."""
        if cap >= self.longest:
            return self.mean
        capped = (middle if middle < cap else cap for middle in _MIDDLES)
        return min(self.mean, float(sum(map(mul, self.counts, capped))) / self.answers)


class Outputs:
    """Expected output lengths, learnt from finished answers.

    A prefix is followed at block 1, 2, 4, 8 and so on of its chain, and one step deeper with each
    request that shares it, so that prompts nobody else begins like leave a single entry. At most
    `MAX_GROUPS` prefixes are kept, and `MAX_CLIENTS` of clients and models, the most recently used
    ones.

    An answer teaches the group that it was expected by and the finer ones, not the coarser: their
    estimates are for requests that nothing finer is known of, and should come from such. Models
    that predict text by contexts of several lengths do the same, and call it update exclusion.
    """

    def __init__(self) -> None:
        self._prefixes: OrderedDict[bytes, _Group] = OrderedDict()
        self._clients: OrderedDict[object, _Group] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prefixes) + len(self._clients)

    def expect(self, model: str, route: str, tenant: str, chain: Chain, cap: int | None) -> float:
        """Tokens that a request will generate: the mean, for costs that are linear in them.

        Args:
            route: the API it came by, which goes with a kind of client.
            cap: the client's limit on output tokens, None when it gave none.
        """
        limit = inf if cap is None else float(cap)
        group = self._group(model, route, tenant, chain, cap)
        return min(float(TYPICAL_OUTPUT), limit) if group is None else group.mean_within(limit)

    def _group(
        self, model: str, route: str, tenant: str, chain: Chain, cap: int | None
    ) -> _Group | None:
        """The one to expect a request by."""
        prefixes = self._prefixes
        best: _Group | None = None
        end = HASH_BYTES
        while end <= len(chain):
            group = prefixes.get(chain[end - HASH_BYTES : end])
            if group is None or group.answers < ENOUGH:
                break
            best = group
            end *= 2
        if best is not None:
            return best
        for key in (_client(model, route, tenant, cap), model):
            group = self._clients.get(key)
            if group is not None and group.answers >= ENOUGH:
                return group
        return None

    def learn(
        self,
        model: str,
        route: str,
        tenant: str,
        chain: Chain,
        cap: int | None,
        output_tokens: int,
    ) -> None:
        """A request, described as it was to `expect`, has ended by itself or at its cap. Those
        that were cancelled or failed are not for here."""
        if output_tokens < 1:
            return
        limit = inf if cap is None else float(cap)
        prefixes = self._prefixes
        best: _Group | None = None
        end = HASH_BYTES
        while end <= len(chain):
            link = chain[end - HASH_BYTES : end]
            group = prefixes.get(link)
            if group is None:
                group = prefixes[link] = _Group()
                group.add(output_tokens, limit)
                if len(prefixes) > MAX_GROUPS:
                    prefixes.popitem(last=False)
                break
            prefixes.move_to_end(link)
            if group.answers < ENOUGH:
                group.add(output_tokens, limit)
            else:
                best = group
            end *= 2
        if best is not None:
            best.add(output_tokens, limit)
        elif not self._teach(_client(model, route, tenant, cap), output_tokens, limit):
            self._teach(model, output_tokens, limit)

    def _teach(self, key: object, output_tokens: int, limit: float) -> bool:
        """Teach a client or a model.

        Returns:
            Whether it was known well enough.
        """
        groups = self._clients
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group()
            if len(groups) > MAX_CLIENTS:
                groups.popitem(last=False)
        else:
            groups.move_to_end(key)
        known = group.answers >= ENOUGH
        group.add(output_tokens, limit)
        return known


def _client(model: str, route: str, tenant: str, cap: int | None) -> tuple[str, str, str, int]:
    """One program of one tenant, as far as can be told: programs ask for what they expect."""
    return model, route, tenant, -1 if cap is None else cap.bit_length()
