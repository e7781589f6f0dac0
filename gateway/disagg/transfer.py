"""The KV cache of one prompt on its way from engine to engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.disagg.links import Links

if TYPE_CHECKING:
    from gateway.disagg.traffic import Traffic


class Transfer:
    """It ends by `arrived` or by `dropped`, whichever is called first.

    Args:
        links: learn of it.
        sized: its bytes are known, and so what it should take.
        tokens: that the decode engine lacks.
        began: when the prefill was done; None where nobody sees that.
    """

    __slots__ = (
        "_began",
        "_decode",
        "_links",
        "_model",
        "_over",
        "_predicted",
        "_size",
        "_tokens",
        "_traffic",
    )

    def __init__(
        self,
        traffic: Traffic,
        model: str,
        links: Links,
        sized: bool,
        prefill: str,
        decode: str,
        tokens: float,
        began: float | None,
    ) -> None:
        self._traffic = traffic
        self._model = model
        self._links = links
        self._size = links.shape.bytes(tokens) if sized else None
        self._decode = decode
        self._tokens = tokens
        self._began = began
        self._over = False
        self._predicted: float | None = None
        if began is not None:
            if sized:
                self._predicted = links.seconds(prefill, decode, tokens)
            busy = traffic.is_prefilling(decode)
            links.began(self, prefill, decode, tokens, began, busy=busy)

    def arrived(self, *, seen: bool) -> None:
        """The decode engine has begun to answer.

        Args:
            seen: this is its first content, and not all of an answer that is no stream.
        """
        if self._over:
            return
        if self._began is None or not seen:
            self.dropped()
            self._traffic.moved(self._model, self._tokens, self._size)
            return
        self._over = True
        now, step = self._traffic.moment(self._decode)
        self._links.ended(self, now, step, busy=self._traffic.is_prefilling(self._decode))
        self._traffic.moved(self._model, self._tokens, self._size)
        self._traffic.timed(
            self._model, self._tokens, max(0.0, now - self._began - step), self._predicted
        )

    def dropped(self) -> None:
        """Nothing comes of it, or when it ended cannot be told."""
        if not self._over:
            self._over = True
            self._links.dropped(self)
