"""What the HTTP API accepts: bodies, read and checked into calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from loadtests.sim import tokens as tokenizer

DEFAULT_COMPLETION_TOKENS = 16
Prompts = str | list[str | int | list[int]] | None


class ApiError(Exception):
    """An answer that is an error, in vLLM's shape."""

    def __init__(
        self, message: str, *, status: int = 400, type: str = "BadRequestError", param: str | None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": str(self),
                "type": self.type,
                "param": self.param,
                "code": self.status,
            }
        }


class Body(msgspec.Struct):
    """Fields that are not named here are ignored, as by vLLM."""

    model: str | None = None
    cache_salt: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class GenerateBody(Body):
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = 1
    seed: int | None = None
    request_id: str | None = None


class ChatBody(GenerateBody):
    messages: list[dict[str, Any]] = []
    tools: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    prompt_token_ids: list[int] | None = None
    """TensorRT-LLM's, in place of what the messages make."""


class CompletionBody(GenerateBody):
    prompt: Prompts = None


class EmbeddingBody(Body):
    input: Prompts = None
    encoding_format: str | None = None
    dimensions: int | None = None


class TokenizeBody(Body):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: bool = True


class DetokenizeBody(Body):
    tokens: list[int] = []


B = TypeVar("B", bound=Body)


@dataclass(slots=True)
class Models:
    """The names that are served.

    Attributes:
        names: of the base model, the first being the one shown.
        adapters: LoRA adapters, each with its own part of the cache.
    """

    names: list[str]
    adapters: list[str]

    def resolve(self, asked: str | None) -> tuple[str, str]:
        """
        Returns:
            The name to show, and the adapter ("" for the base model).

        Raises:
            ApiError: no such model.
        """
        if not asked or asked in self.names:
            return self.names[0], ""
        if asked in self.adapters:
            return asked, asked
        message = f"The model `{asked}` does not exist."
        raise ApiError(message, status=404, type="NotFoundError", param="model")


@dataclass(slots=True)
class Call:
    """A checked request to generate or to embed.

    Attributes:
        prompts: packed tokens of each prompt.
        namespace: what else decides the cache content.
        output_tokens: per answer.
        capped: the client's own limit ends the answer, not the model.
    """

    model: str
    namespace: bytes
    prompts: list[bytes]
    n: int = 1
    output_tokens: int = 0
    capped: bool = False
    stream: bool = False
    include_usage: bool = False
    seed: int | None = None
    request_id: str | None = None


@dataclass(slots=True)
class Reader:
    """Reads bodies.

    Args:
        answer_tokens: length of an answer whose length the client does not limit.
    """

    models: Models
    max_model_len: int
    answer_tokens: int

    def chat(self, data: bytes) -> Call:
        """Raises: ApiError, like all of these."""
        body = _decode(data, ChatBody)
        if not body.messages:
            raise ApiError("messages must not be empty", param="messages")
        if body.prompt_token_ids is None:
            prompt = _render(body.messages, body.tools, body.add_generation_prompt)
        else:
            prompt = _pack(body.prompt_token_ids, "prompt_token_ids")
        limit = body.max_completion_tokens
        return self._call(body, [prompt], body.max_tokens if limit is None else limit)

    def completion(self, data: bytes) -> Call:
        body = _decode(data, CompletionBody)
        limit = body.max_tokens
        prompts = _prompts(body.prompt, "prompt")
        return self._call(body, prompts, DEFAULT_COMPLETION_TOKENS if limit is None else limit)

    def embedding(self, data: bytes) -> tuple[Call, EmbeddingBody]:
        body = _decode(data, EmbeddingBody)
        model, namespace = self._model(body)
        prompts = _prompts(body.input, "input")
        for prompt in prompts:
            self._check_length(prompt, 0)
        return Call(model, namespace, prompts), body

    def tokenize(self, data: bytes) -> bytes:
        """Packed tokens."""
        body = _decode(data, TokenizeBody)
        self.models.resolve(body.model)
        if body.messages is not None:
            return _render(body.messages, body.tools, body.add_generation_prompt)
        return tokenizer.encode(body.prompt or "")

    def detokenize(self, data: bytes) -> str:
        body = _decode(data, DetokenizeBody)
        self.models.resolve(body.model)
        return tokenizer.decode(_pack(body.tokens, "tokens"))

    def _call(self, body: GenerateBody, prompts: list[bytes], limit: int | None) -> Call:
        if limit is not None and limit < 1:
            raise ApiError(f"max_tokens must be at least 1, got {limit}", param="max_tokens")
        n = 1 if body.n is None else body.n
        if n < 1:
            raise ApiError(f"n must be at least 1, got {n}", param="n")
        stream = bool(body.stream)
        if body.stream_options is not None and not stream:
            message = "Stream options can only be defined when `stream=True`."
            raise ApiError(message, param="stream_options")
        model, namespace = self._model(body)
        for prompt in prompts:
            self._check_length(prompt, limit or 1)
        longest = max(len(prompt) for prompt in prompts) // tokenizer.TOKEN_BYTES
        return Call(
            model,
            namespace,
            prompts,
            n,
            min(self.answer_tokens, self.max_model_len - longest) if limit is None else limit,
            limit is not None,
            stream,
            body.stream_options is not None and bool(body.stream_options.include_usage),
            body.seed,
            body.request_id,
        )

    def _model(self, body: Body) -> tuple[str, bytes]:
        model, adapter = self.models.resolve(body.model)
        return model, b"%b\0%b" % (adapter.encode(), (body.cache_salt or "").encode())

    def _check_length(self, prompt: bytes, output: int) -> None:
        count = len(prompt) // tokenizer.TOKEN_BYTES
        if not count:
            raise ApiError("The prompt must not be empty.", param="prompt")
        if count + output > self.max_model_len:
            raise ApiError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"you requested {output} output tokens and your prompt contains {count} input "
                f"tokens. Please reduce the length of the input prompt or the number of "
                f"requested output tokens.",
                param="input_tokens",
            )


def _decode(data: bytes, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"The body cannot be read: {error}", param=None) from None


def _render(messages: list[dict[str, Any]], tools: msgspec.Raw, open_answer: bool) -> bytes:
    given = bytes(tools)
    return tokenizer.render_chat(
        messages, b"" if given == b"null" else given, open_answer=open_answer
    )


def _prompts(given: Prompts, field: str) -> list[bytes]:
    """One prompt as text or ids, or a list of either."""
    if isinstance(given, str):
        return [tokenizer.encode(given)]
    if not given:
        raise ApiError(f"{field} must not be empty", param=field)
    prompts: list[bytes] = []
    single: list[int] = []
    for item in given:
        if isinstance(item, int):
            single.append(item)
        else:
            prompts.append(tokenizer.encode(item) if isinstance(item, str) else _pack(item, field))
    if single and prompts:
        raise ApiError(f"{field} mixes token ids with prompts", param=field)
    return [_pack(single, field)] if single else prompts


def _pack(ids: list[int], field: str) -> bytes:
    try:
        return tokenizer.pack(ids)
    except ValueError as error:
        raise ApiError(str(error), param=field) from None
