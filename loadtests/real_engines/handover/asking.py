"""Requests to the gateway, or to an engine by itself, and what came of them."""

from __future__ import annotations

import json
import random
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

Json = dict[str, Any]

_WORDS = "the of and to in is you that it he was for on are as with his they at be this from or had"
_TIMEOUT = 120.0
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(slots=True, frozen=True)
class Reply:
    """
    Attributes:
        placement: what the gateway says of where it was prefilled, and why; "" from an engine.
        matched: tokens of the prompt that the gateway expected where it was prefilled.
        prompt, cached: tokens, as the engine that answered tells.
        chunks: events with text; 0 when it was not a stream.
    """

    status: int
    placement: str
    matched: int
    text: str
    prompt: int
    cached: int
    chunks: int

    @property
    def remote(self) -> bool:
        return self.placement.startswith("remote;")


def words(count: int) -> str:
    """That nobody has ever asked."""
    dice = random.Random(secrets.token_hex(8))
    choice = _WORDS.split()
    return " ".join(dice.choice(choice) for _ in range(count))


def body(path: str, model: str, text: str, **more: Any) -> Json:
    """A request for the same answer each time."""
    asked: Json = {"prompt": text}
    if path == CHAT:
        asked = {"messages": [{"role": "user", "content": text}]}
    return {"model": model, "max_tokens": 100, "temperature": 0.0, **asked, **more}


def ask(url: str, path: str, asked: Json, *, stream: bool = False) -> Reply:
    """
    Raises:
        httpx.HTTPError: there is no answer.
    """
    if stream:
        asked = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    texts: list[str] = []
    usage: Json = {}
    with (
        httpx.Client(trust_env=False, timeout=_TIMEOUT) as client,
        client.stream("POST", url + path, json=asked) as answer,
    ):
        if not stream or answer.status_code != 200:
            answer.read()
            document = answer.json() if answer.status_code == 200 else {}
            texts = [_text(choice) for choice in document.get("choices", ())]
            usage = document.get("usage") or {}
        else:
            for event in _events(answer):
                texts += [text for choice in event["choices"] if (text := _text(choice))]
                usage = event.get("usage") or usage
        told = answer.headers
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        answer.status_code,
        told.get("x-prefixgate-handover", ""),
        int(told.get("x-prefixgate-matched-tokens", 0)),
        "".join(texts),
        usage.get("prompt_tokens", 0),
        details.get("cached_tokens") or 0,
        len(texts) if stream else 0,
    )


class Leaver:
    """A client that asks for a stream, and leaves before its end."""

    def __init__(self, url: str, path: str, asked: Json) -> None:
        parts = urlsplit(url)
        content = json.dumps({**asked, "stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=_TIMEOUT)
        self._socket.sendall(head.encode() + content)

    def wait_text(self, events: int) -> None:
        """Wait for so many events of the answer.

        Raises:
            OSError: none come.
        """
        got = b""
        while got.count(b"data: {") < events:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError("the answer ended before its client could leave")
            got += data

    def leave(self) -> None:
        self._socket.close()


def _events(answer: httpx.Response) -> Iterator[Json]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _text(choice: Json) -> str:
    message = choice.get("message") or choice.get("delta") or choice
    return message.get("content") or message.get("text") or ""
