"""Why a request is not handed over, and is served by one engine."""

from __future__ import annotations

from enum import StrEnum


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
    SPELLING = "spelling"
    """Not a JSON object in UTF-8, so that no member of it can be changed."""
