"""A reader of server-sent events, after the letter of the standard and with no regard to speed.

It is the reference that relayed streams are held against, so it shares no code with the gateway.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Event:
    """Attributes:
    data: the data lines, joined.
    name: the `event` field, "message" when there is none.
    """

    data: str
    name: str = "message"

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(slots=True)
class Stream:
    """What a whole stream said.

    Attributes:
        events: the ones that a blank line ended; an event without it is never dispatched.
        comments: the comment lines' texts.
        unfinished: lines after the last blank line.
    """

    events: list[Event] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    @property
    def payloads(self) -> list[Any]:
        """The JSON of each event but `[DONE]`."""
        return [event.json for event in self.events if event.data != "[DONE]"]

    @property
    def done(self) -> bool:
        return any(event.data == "[DONE]" for event in self.events)

    @property
    def errors(self) -> list[Any]:
        """Payloads that are an error, in any dialect."""
        return [
            payload
            for payload in self.payloads
            if payload.get("error") or payload.get("type") in ("error", "response.failed")
        ]

    @property
    def text(self) -> str:
        """The content of a chat completion."""
        return "".join(
            choice.get("delta", {}).get("content") or choice.get("text") or ""
            for payload in self.payloads
            for choice in payload.get("choices", ())
        )


def read(data: bytes) -> Stream:
    """A character whose last bytes are still missing is left out.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    stream = Stream()
    text = codecs.getincrementaldecoder("utf-8")().decode(data).removeprefix("\ufeff")
    *lines, rest = re.split("\r\n|\r|\n", text)
    pending: list[str] = []
    texts: list[str] = []
    name = "message"
    for line in lines:
        if not line:
            if texts:
                stream.events.append(Event("\n".join(texts), name))
            pending, texts, name = [], [], "message"
            continue
        pending.append(line)
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not key:
            stream.comments.append(value)
        elif key == "data":
            texts.append(value)
        elif key == "event":
            name = value
    stream.unfinished = [*pending, rest] if rest else pending
    return stream
