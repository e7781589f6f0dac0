"""Why a request is not handed over, and is served by one engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from gateway.disagg.members import Members, elements


class Refusal(StrEnum):
    """Also a metric label, so the set is closed."""

    ROUTE = "route"
    """The protocol does not carry this route."""
    SEVERAL_ANSWERS = "several_answers"
    """n, best_of or beams: what is handed over can be fetched once."""
    BATCH = "batch"
    """Several prompts in one request."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """Only who computes the prompt knows them; engines do not look prompts up in their cache for
    these either."""
    ECHO = "echo"
    """The prompt is to be in the answer."""
    EMBEDDINGS = "embeddings"
    """The prompt came as embeddings."""
    STORED = "stored"
    """It goes on from an answer that one engine keeps, or is to run in the background there."""
    THINKING = "thinking"
    """The engine takes no cap below the budget for thinking."""
    SPELLING = "spelling"
    """Not a JSON object in UTF-8, so that no member of it can be changed."""


_NULL = b"null"
_NO = frozenset({_NULL, b"false"})
_ONE = frozenset({_NULL, b"1"})
_ABSENT = frozenset({_NULL})
_SAMPLING = "sampling_params"
_IN_SAMPLING: dict[str, tuple[frozenset[bytes], Refusal]] = {
    "n": (_ONE, Refusal.SEVERAL_ANSWERS),
    "best_of": (_ONE, Refusal.SEVERAL_ANSWERS),
    "use_beam_search": (_NO, Refusal.SEVERAL_ANSWERS),
    "prompt_logprobs": (_ABSENT, Refusal.PROMPT_LOGPROBS),
}
"""By member, the values that are as good as none, and what any other one means."""
_AT_TOP = {
    **_IN_SAMPLING,
    "logprob_start_len": (frozenset({_NULL, b"-1"}), Refusal.PROMPT_LOGPROBS),
    "echo": (_NO, Refusal.ECHO),
    "prompt_embeds": (_ABSENT, Refusal.EMBEDDINGS),
    "input_embeds": (_ABSENT, Refusal.EMBEDDINGS),
    "previous_response_id": (_ABSENT, Refusal.STORED),
    "conversation": (_ABSENT, Refusal.STORED),
    "background": (_NO, Refusal.STORED),
}
"""On any route: engines skip members that are not theirs."""
_PROMPTS = ("prompt", "text", "input_ids")
_PLAIN_ARRAY = re.compile(rb"\[\s*[^\s\"\[]")
"""Not of texts or of further arrays: the ids of one prompt's tokens, or empty."""


def refusal(body: bytes, *, batches: bool = False) -> Refusal | None:
    """Why no protocol carries a request, whatever its route; None when nothing speaks against it.

    Args:
        batches: several prompts can be carried.
    """
    try:
        members = Members(body)
        why = _first(members, _AT_TOP)
        several = (prompts(members) or 1) > 1
        if why is None and several and not batches:
            why = Refusal.BATCH
        sampling = members.get(_SAMPLING)
        if why is not None or sampling is None:
            return why
        if sampling.startswith(b"["):
            return Refusal.BATCH
        return _first(Members(sampling), _IN_SAMPLING) if sampling.startswith(b"{") else None
    except (ValueError, RecursionError):
        return Refusal.SPELLING


def prompts(members: Members) -> int | None:
    """How many prompts a body has in an array; None when it has one by itself.

    Raises:
        ValueError: they cannot be read.
    """
    for name in _PROMPTS:
        value = members.get(name)
        if value is not None and value.startswith(b"[") and _PLAIN_ARRAY.match(value) is None:
            return elements(value)
    return None


def _first(
    members: Members, harmless: Mapping[str, tuple[frozenset[bytes], Refusal]]
) -> Refusal | None:
    for name, (values, why) in harmless.items():
        value = members.get(name)
        if value is not None and value not in values:
            return why
    return None
