"""One request at a prefill or decode engine: what it asks for, and what is wrong with that."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.harness.pd.kv import Kv
from tests.harness.recorded import Recorded

CAPS = {
    "/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/completions": ("max_tokens",),
    "/responses": ("max_output_tokens",),
    "/messages": ("max_tokens",),
}
"""Fields that limit an answer's length, by the end of the route; the first that is there counts."""

PROMPT = ("prompt", "messages", "input", "system", "tools", "instructions", "chat_template_kwargs")


class Part(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    WHOLE = "whole"
    """A request for one engine, as if there were no others."""


class Refused(Exception):
    """The engine answers with an error."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class LoadFailed(Exception):
    """The decode engine cannot get the KV cache that it was told to read."""


@dataclass(slots=True, eq=False)
class Leg:
    """
    Attributes:
        part: known once the engine has looked at it.
        complaints: what a real engine would not refuse, but answer wrongly, slowly or with a leak.
        kv: what it made, or what it reads.
        aborted: by its rid.
    """

    request: Recorded
    body: dict[str, Any] = field(default_factory=dict)
    part: Part = Part.WHOLE
    complaints: list[str] = field(default_factory=list)
    kv: Kv | None = None
    aborted: bool = False

    @property
    def id(self) -> str:
        return (self.request.header(b"x-request-id") or b"").decode("latin-1")

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def prompt(self) -> str:
        """What decides the KV cache."""
        parts = {name: self.body[name] for name in PROMPT if name in self.body}
        return f"{self.path} {json.dumps(parts, sort_keys=True)}"

    @property
    def tokens(self) -> int:
        return max(1, len(self.prompt) // 4)

    @property
    def over(self) -> bool:
        return self.request.complete or self.request.closed is not None

    @property
    def limits(self) -> dict[str, Any]:
        """The fields that are there of those that limit its length, by name."""
        names = next(names for end, names in CAPS.items() if self.path.endswith(end))
        return {name: self.body[name] for name in names if self.body.get(name) is not None}

    def complain(self, wrong: bool, what: str) -> None:
        if wrong:
            self.complaints.append(what)


def check(leg: Leg) -> None:
    """What engines look at in any request.

    Raises:
        Refused: as a real engine would.
    """
    body = leg.body
    if body.get("stream_options") is not None and body.get("stream") is not True:
        raise Refused("Stream options can only be defined when `stream=True`.")
    limit = next(iter(leg.limits.values()), None)
    for name in ("min_tokens", "min_completion_tokens"):
        if limit is not None and (body.get(name) or 0) > limit:
            raise Refused(f"{name} must be less than or equal to max_tokens={limit}")
    if body.get("tools") == []:
        raise Refused("tools must not be an empty array")


def check_capped(leg: Leg) -> None:
    """A prefill leg of the protocols in which the gateway makes it end after one token."""
    body = leg.body
    leg.complain(not leg.limits, "no limit of its length")
    for name, value in leg.limits.items():
        leg.complain(value != 1, f"{name} is {value!r}, not 1")
    leg.complain(body.get("stream") is True, "it streams")
    check_carried(leg)


def check_carried(leg: Leg, *, batches: bool = False) -> None:
    """What no protocol can carry.

    Args:
        batches: this one carries several prompts in one request.
    """
    body = leg.body
    for name in ("n", "best_of"):
        leg.complain((body.get(name) or 1) > 1, f"{name} is {body.get(name)!r}")
    leg.complain(body.get("prompt_logprobs") is not None, "it asks for prompt_logprobs")
    leg.complain(bool(body.get("echo")), "it asks for echo")
    leg.complain(prompts(leg) > 0 and not batches, "it has several prompts")


def prompts(leg: Leg) -> int:
    """How many prompts come in a list; 0 when one comes by itself."""
    given = leg.body.get("prompt")
    listed = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    return len(given) if isinstance(given, list) and listed else 0
