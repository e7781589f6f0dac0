"""Engines' own ways of completing a prompt: /generate (SGLang, TGI, TensorRT-LLM), /generate_stream
(TGI), /completion (llama.cpp), /inference/v1/generate (vLLM)."""

from __future__ import annotations

import re
from typing import Any

from gateway.http.dialects.base import Body, JsonDialect, count_or_none, int_or_none
from gateway.http.dialects.errors import OpenAIErrors
from gateway.http.dialects.key import media_key, prompt_key
from gateway.http.dialects.usage import Usage, native_usage
from gateway.http.native_scanner import NativeScanner
from gateway.http.sse import Grammar, StreamScanner
from gateway.http.stored import Stored
from gateway.types import Prompt

GENERATE = Grammar(
    re.compile(
        rb'"(?:text|content|text_output)"\s*:\s*"[^"\n]|'
        rb'"token"\s*:\s*\{|"(?:token_ids|output_ids)"\s*:\s*\[\s*\d'
    ),
    b"\r",
    re.compile(rb'"stop"\s*:\s*true|"generated_text"\s*:\s*"'),
)
"""There is no usual spelling; a CR never is in a line."""


class GenerateBody(Body):
    """The same members under every name that they go by."""

    text: Any = None
    input_ids: Any = None
    inputs: Any = None
    prompt: Any = None
    text_input: Any = None
    token_ids: Any = None
    image_data: Any = None
    sampling_params: Any = None
    max_tokens: Any = None
    n_predict: Any = None
    priority: Any = None


class Generate(OpenAIErrors, JsonDialect[GenerateBody]):
    name = "generate"
    body_type = GenerateBody
    grammar = GENERATE
    needs_model = False
    always_streams = False

    def read(self, request: GenerateBody) -> Prompt:
        spellings = (
            *(request.text, request.input_ids, request.inputs),
            *(request.prompt, request.text_input, request.token_ids),
        )
        prompt = prompt_key(next((value for value in spellings if value is not None), None))
        media = b"" if request.image_data is None else media_key(request.image_data)
        return Prompt(
            request.model,
            request.namespace(is_ids=prompt.is_ids),
            media + prompt.key,
            self.always_streams or request.stream is True,
            True,
            _cap(request),
            len(media) + prompt.size,
            int_or_none(request.priority),
            prompt.is_ids,
        )

    def scanner(self, stored: Stored | None = None) -> StreamScanner:
        return NativeScanner(self.grammar)

    def usage(self, body: bytes) -> Usage | None:
        return native_usage(body)


class GenerateStream(Generate):
    always_streams = True


def _cap(request: GenerateBody) -> int | None:
    for values, name in (
        (request.sampling_params, "max_new_tokens"),
        (request.sampling_params, "max_tokens"),
        (request.parameters, "max_new_tokens"),
    ):
        if isinstance(values, dict) and name in values:
            return count_or_none(values[name])
    return count_or_none(request.max_tokens if request.n_predict is None else request.n_predict)
