"""Conversations held through the official OpenAI SDK, several at a time, turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from openai import AsyncOpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

from gateway.http.dialects.key import messages_key
from loadtests.real_engines.exchange import Exchange
from loadtests.workload import Mix, Session, generate

_TURNS = 4


class ConversationError(RuntimeError):
    """An answer lacks what the comparison needs."""


def conversations(count: int, seed: int) -> list[Session]:
    """Chats of four turns over five system prompts, each of a few of the engines' blocks.

    Sized so that waiting for one other prompt never takes longer than computing a history again:
    of two requests at a time, neither has a reason to leave its home.
    """
    mix = Mix(
        chats=count,
        documents=0,
        one_offs=0,
        arrivals=0.0,
        system_prompts=5,
        system_tokens=(150, 200),
        opening_tokens=(300, 380),
        turn_tokens=(60, 200),
        chat_turns=(_TURNS, _TURNS),
        answer_tokens=(40, 120),
    )
    return generate(mix, seed)


async def hold(
    url: str,
    model: str,
    salt: str,
    sessions: Sequence[Session],
    at_a_time: int,
    observe: Callable[[Exchange], None],
) -> list[Exchange]:
    """Hold all conversations, every second one streaming.

    Args:
        url: of the gateway.
        salt: sets these conversations apart from all others in every cache.
        at_a_time: requests under way; the others wait in line, so that all conversations advance
            together.
        observe: called after every answer; what it raises ends all of them and is raised here.
    """
    slots = asyncio.Semaphore(at_a_time)
    exchanges: list[Exchange] = []

    async def follow(place: int, session: Session) -> None:
        messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": session.system}]
        ask = _ask_streaming if place % 2 else _ask
        for number, turn in enumerate(session.turns):
            messages.append({"role": "user", "content": turn.text})
            async with slots:
                reply = await ask(client, model, messages, turn.max_tokens, salt)
            exchange = _exchange(session.name, number, reply, len(messages_key(messages)))
            exchanges.append(exchange)
            observe(exchange)
            messages.append({"role": "assistant", "content": reply.text})

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for place, session in enumerate(sessions):
                    group.create_task(follow(place, session))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
    return exchanges


@dataclass(slots=True, frozen=True)
class _Reply:
    headers: Mapping[str, str]
    text: str
    prompt: list[int] | None
    answer: list[int]
    usage: CompletionUsage | None


async def _ask(
    client: AsyncOpenAI,
    model: str,
    messages: list[ChatCompletionMessageParam],
    max_tokens: int,
    salt: str,
) -> _Reply:
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=messages,
        max_tokens=max_tokens,
        temperature=0.0,
        extra_body=_extras(salt),
    )
    completion = raw.parse()
    choice = completion.choices[0]
    return _Reply(
        raw.headers,
        choice.message.content or "",
        _extra(completion.model_extra, "prompt_token_ids"),
        _extra(choice.model_extra, "token_ids") or [],
        completion.usage,
    )


async def _ask_streaming(
    client: AsyncOpenAI,
    model: str,
    messages: list[ChatCompletionMessageParam],
    max_tokens: int,
    salt: str,
) -> _Reply:
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=messages,
        max_tokens=max_tokens,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=_extras(salt),
    )
    text: list[str] = []
    prompt: list[int] | None = None
    answer: list[int] = []
    usage: CompletionUsage | None = None
    async for chunk in raw.parse():
        prompt = prompt or _extra(chunk.model_extra, "prompt_token_ids")
        usage = usage or chunk.usage
        for choice in chunk.choices:
            text.append(choice.delta.content or "")
            answer += _extra(choice.model_extra, "token_ids") or []
    return _Reply(raw.headers, "".join(text), prompt, answer, usage)


def _extras(salt: str) -> dict[str, object]:
    """What vLLM understands beyond OpenAI's API."""
    return {"cache_salt": salt, "return_token_ids": True}


def _extra(extras: dict[str, object] | None, name: str) -> list[int] | None:
    ids = (extras or {}).get(name)
    return ids if isinstance(ids, list) else None


def _exchange(conversation: str, turn: int, reply: _Reply, key_bytes: int) -> Exchange:
    if reply.prompt is None or not reply.answer:
        raise ConversationError("an engine ignores return_token_ids: is it a recent vLLM?")
    details = reply.usage.prompt_tokens_details if reply.usage is not None else None
    if details is None or details.cached_tokens is None:
        raise ConversationError(
            "an engine does not tell cached_tokens: start it with --enable-prompt-tokens-details"
        )
    return Exchange(
        conversation,
        turn,
        reply.headers["x-prefixgate-backend"],
        reply.headers["x-prefixgate-decision"],
        int(reply.headers["x-prefixgate-matched-tokens"]),
        details.cached_tokens,
        tuple(reply.prompt),
        tuple(reply.answer),
        key_bytes,
    )
