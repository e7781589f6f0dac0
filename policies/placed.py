"""What prefix_affinity tells the same policy of other replicas."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Placed(msgspec.Struct, frozen=True, array_like=True, tag="prefix_affinity"):
    """What later choices have to know of a request that was sent to a backend.

    Attributes:
        prefill: seconds of prefill that it brings there.
        weight: in tokens, if it could have gone elsewhere alike; 0 if it had no choice.
        prefix: the last block of what any backend held of it; b"" when none held any.
        waits: what the company there costs more than where there is least of it, in seconds; None
            when the prefix was not there and is copied.
        prompt_tokens: cached there or not.
    """

    model: str
    prefill: Annotated[float, Meta(ge=0, le=1e6)]
    weight: Annotated[float, Meta(ge=0, le=1e9)]
    prefix: bytes
    waits: Annotated[float, Meta(ge=0, le=1e6)] | None
    prompt_tokens: Annotated[int, Meta(ge=0, le=1_000_000_000)]

    def encode(self) -> bytes:
        return _encoder.encode(self)

    @staticmethod
    def decode(note: bytes) -> Placed | None:
        """None when it is something else."""
        try:
            return _decoder.decode(note)
        except msgspec.DecodeError:
            return None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Placed)
