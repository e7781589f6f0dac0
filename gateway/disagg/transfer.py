"""The KV cache of one prompt on its way from engine to engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.disagg.links import Links

if TYPE_CHECKING:
    from gateway.disagg.traffic import Traffic


class Transfer:
    """It ends by `arrived` or by `dropped`, whichever is called first.

    Args:
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
        "_tokens",
        "_traffic",
    )

    def __init__(
        self,
        traffic: Traffic,
        model: str,
        links: Links | None,
        prefill: str,
        decode: str,
        tokens: float,
        began: float | None,
    ) -> None:
        self._traffic = traffic
        self._model = model
        self._links = links
        self._decode = decode
        self._tokens = tokens
        self._began = began
        self._over = False
        self._predicted: float | None = None
        if links is not None and began is not None:
            self._predicted = links.seconds(prefill, decode, tokens)
            links.began(self, prefill, decode, tokens, began)

    def arrived(self, *, seen: bool) -> None:
        """The decode engine has begun to answer.

        Args:
            seen: this is its first content, and not all of an answer that is no stream.
        """
        if self._over:
            return
        if self._began is None or not seen:
            self.dropped()
            self._traffic.moved(self._model, self._links, self._tokens)
            return
        self._over = True
        now, step = self._traffic.moment(self._decode)
        if self._links is not None:
            self._links.ended(self, now, step)
        self._traffic.moved(self._model, self._links, self._tokens)
        self._traffic.timed(
            self._model, self._tokens, max(0.0, now - self._began - step), self._predicted
        )

    def dropped(self) -> None:
        """Nothing comes of it, or when it ended cannot be told."""
        if not self._over:
            self._over = True
            if self._links is not None:
                self._links.dropped(self)
