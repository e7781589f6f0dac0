"""Value types that several layers share. No behaviour beyond small derived values.

They are msgspec structs, here and elsewhere, where one is made for every request: that takes a
quarter of the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

Clock = Callable[[], float]
"""Seconds on a monotonic scale; virtual in replays, the event loop's in the live gateway."""

Chain = bytes
"""Chained block hashes of a prompt key, 8 bytes each: `len(chain) // 8` blocks."""

HASH_BYTES = 8


class Role(StrEnum):
    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class EngineKind(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    TGI = "tgi"
    OLLAMA = "ollama"
    OPENAI = "openai"
    """Any other server that speaks the OpenAI routes."""


class WorkClass(StrEnum):
    """`prefill`: brings many uncached tokens. `decode`: brings few, and goes ahead."""

    PREFILL = "prefill"
    DECODE = "decode"


class Priority(StrEnum):
    """How requests rank against each other. Each has a share that the others cannot take."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Reason(StrEnum):
    """Why a decision fell as it did; also a metric label, so the set is closed."""

    PREFIX = "prefix"
    """The backend that holds most of the prompt is also the cheapest."""
    SPILL = "spill"
    """Another backend holds more of the prompt, but waiting there costs more than recomputing, or
    it has no room."""
    COPY = "copy"
    """The wait for the backends that hold most of the prompt has added up to what one more copy
    costs."""
    LOAD = "load"
    """Nothing worth reusing is cached anywhere, or the policy looks at load alone."""
    ROTATION = "rotation"
    """Next in turn."""
    HASH = "hash"
    """Where the key's hash points."""
    SESSION = "session"
    """Where the session's hash points."""
    SESSIONLESS = "sessionless"
    """The request names no session: placed by load."""
    ONLY = "only"
    """There was one candidate."""


class Outcome(StrEnum):
    """How a request ended. Each request has exactly one."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The request was refused as wrong, by the gateway or by the engine (4xx)."""
    BACKPRESSURE = "backpressure"
    """The engine answered 429 or 503."""
    UPSTREAM_ERROR = "upstream_error"
    """The engine answered 5xx, broke off, sent an error event, or could not be reached."""
    TIMEOUT = "timeout"
    """Connect, first-byte or idle limit."""
    CANCELLED = "cancelled"
    """The client left."""
    REJECTED = "rejected"
    """Refused by the gateway: queue full, waited too long, no backend, shutting down."""
    INTERNAL_ERROR = "internal_error"
    """The gateway itself failed. Always a bug."""


class Prompt(msgspec.Struct, frozen=True):
    """What a dialect reads out of a request.

    Args:
        model: the model asked for, as the client spelt it; "" when the route names none.
        namespace: model, adapter and cache salt, joined so that no two can be confused.
        key: the prompt key's bytes in the chat template's order; b"" when the request has none
            that can be read (binary bodies, unknown routes): such requests go by load.
        stream: the client asked for server-sent events.
        generates: tokens will be generated (false for embeddings, rerank, score, token counts).
        max_output_tokens: the client's cap, None if it gave none.
        prompt_bytes: size of everything that is prefilled, in key bytes; more than `len(key)` when
            a batch of prompts was sent, of which the key covers the first.
        priority: the engine's own field of that name, None when it is not set.
        is_ids: the prompt came as token ids.
        transfer: name of a member that tells the engine where to fetch a KV cache, or which of its
            ranks is to work; "" without one.
        continues: id of the stored response that it goes on from, "" without one.
        adapters: those that it asks for besides its model; "" for one that goes by no name.
    """

    model: str
    namespace: bytes = b""
    key: bytes = b""
    stream: bool = False
    generates: bool = True
    max_output_tokens: int | None = None
    prompt_bytes: int = 0
    priority: int | None = None
    is_ids: bool = False
    transfer: str = ""
    continues: str = ""
    adapters: tuple[str, ...] = ()


class Match(msgspec.Struct, frozen=True):
    """Per backend id, how much of a chain it is believed to hold. Backends with none are absent.

    Attributes:
        blocks: leading blocks held.
        tokens: expected cached tokens, each block weighted by the confidence that it is still
            there; at most the tokens of `blocks`.
    """

    blocks: Mapping[str, int] = {}
    tokens: Mapping[str, float] = {}


NO_MATCH = Match()


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes.

    Attributes:
        backend: id of the chosen backend.
        reason: why.
        scores: the policy's score of each candidate, in the candidates' order, lower is better;
            empty for policies that do not score.
    """

    backend: str
    reason: Reason
    scores: tuple[float, ...] = ()
