"""An HTTP server around an engine that looks, from outside, like vLLM."""

from __future__ import annotations

import asyncio
import uuid
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from random import Random
from struct import pack
from typing import Any

import uvicorn
from xxhash import xxh3_64_hexdigest

from gateway.config import Server
from gateway.http.client import EXTENSION, DirectClient, Headers, Receive, Scope, Send
from gateway.http.server import GatewayProtocol
from gateway.types import Role
from loadtests.sim import answers, tokens
from loadtests.sim.answers import CHAT, COMPLETION, JSON, Answer, Shape
from loadtests.sim.calls import ApiError, Call, Models, Reader
from loadtests.sim.control import control_app
from loadtests.sim.engine import Engine
from loadtests.sim.half import Half, HalfOptions, digest
from loadtests.sim.legs import Leg
from loadtests.sim.metrics import STOP, EngineMetrics
from loadtests.sim.offers import Offer
from loadtests.sim.profile import Profile
from loadtests.sim.sequence import Listener, Request, Sequence
from loadtests.sim.timeline import LiveTimeline

EMBEDDING_SIZE = 64
KEEP_ALIVE = 5
"""Seconds, as vLLM."""
GRACE = 1
"""Seconds that running answers get when the process is told to stop."""


@dataclass(slots=True, frozen=True)
class Options:
    """What is the server's and not the engine's.

    Attributes:
        names: served names of the model, the first being the one shown.
        adapters: LoRA adapter names.
        answer_tokens: length of an answer whose length the client does not limit.
        show_cached: usage tells how many prompt tokens were cached.
        seed: of the answers' texts.
        half: what the engine is in a pair; None for one that serves by itself.
    """

    names: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    answer_tokens: int = 256
    show_cached: bool = True
    seed: int = 0
    half: HalfOptions | None = None


class SimServer:
    """The ASGI application. Needs the running event loop, and `GatewayProtocol` under it."""

    def __init__(self, profile: Profile, options: Options) -> None:
        timeline = LiveTimeline(asyncio.get_running_loop())
        self._time = timeline.time
        self._metrics = EngineMetrics(options.names[0], timeline.time)
        self.engine = Engine(profile, timeline, step_by_step=True, on_step=self._metrics.step)
        self._options = options
        models = Models(list(options.names), list(options.adapters))
        self._reader = Reader(models, profile.max_model_len, options.answer_tokens)
        self._load = 0
        self._shapes = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
        self._half = half = (
            None if options.half is None else Half(options.half, self.engine, timeline)
        )
        self._control = control_app(
            self.engine,
            self._reader,
            self._metrics,
            lambda: self._load,
            [] if half is None else half.routes(),
            None if half is None else half.fetcher.close,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shape = self._shapes.get(scope.get("path", ""))
        embeds = shape is None and scope.get("path") == "/v1/embeddings"
        if (shape is None and not embeds) or scope["method"] != "POST":
            await self._control(scope, receive, send)
            return
        client: DirectClient = scope["extensions"][EXTENSION]
        self._load += 1
        try:
            data = await _read(scope, receive)
            client.watch()
            if shape is None:
                await self._embed(data, client)
            else:
                await self._generate(data, shape, client, _header(scope, b"x-request-id"))
        except ApiError as error:
            _reply(client, error.status, error.body())
        finally:
            self._load -= 1

    async def _generate(
        self, data: bytes, shape: Shape, client: DirectClient, request_id: bytes
    ) -> None:
        call = self._reader.chat(data) if shape is CHAT else self._reader.completion(data)
        if client.gone:
            return
        name = request_id.decode("latin-1") or call.request_id or uuid.uuid4().hex
        leg = None if self._half is None else self._half.leg(data, name, call)
        offer = None
        if self._half is not None and leg is not None and leg.role is Role.PREFILL:
            offer = await self._half.announce(leg, call)
        answer = Answer(call, shape, client, self._metrics, name, self._options.show_cached)
        client.on_gone = answer.leave
        how: dict[str, Any] = {}
        if self._half is not None and leg is not None:
            how = self._play(self._half, leg, offer, call, answer)
        try:
            for prompt in call.prompts:
                for number in range(call.n):
                    self._add_choice(answer, call, prompt, number, **how)
            await answer.done
        finally:
            self._abandon([choice.sequence for choice in answer.choices])

    def _play(
        self, half: Half, leg: Leg, offer: Offer | None, call: Call, answer: Answer
    ) -> dict[str, Any]:
        """Do a leg's part.

        Returns:
            How its sequence is to be submitted.
        """
        if offer is None:

            def fail(why: str) -> None:
                error = "InternalServerError"
                answer.fail(ApiError(why, status=500, type=error, param=None))

            return {"fetch": half.fetcher.fetch(leg, digest(call), fail)}
        answer.members = dict(leg.answer)
        if leg.choice:
            answer.members["prompt_token_ids"] = tokens.unpack(call.prompts[0])
            answer.choice_members = leg.choice
        computed = half.offers.computed
        answer.on_computed = lambda sequence, now: computed(offer, sequence, now)
        return {"keeps": True}

    def _add_choice(
        self, answer: Answer, call: Call, prompt: bytes, number: int, **how: Any
    ) -> None:
        seeds = f"{self._options.seed} {call.seed} {number}"
        words = tokens.answer(f"{seeds} {xxh3_64_hexdigest(prompt)}", call.output_tokens)
        choice = answer.add_choice(words)
        choice.sequence = self._submit(call, prompt, b"".join(words), choice, **how)

    def _submit(
        self, call: Call, prompt: bytes, output: bytes, listener: Listener, **how: Any
    ) -> Sequence:
        size = self.engine.profile.block_size
        keys = tokens.chain(call.namespace, prompt + output, size)
        lengths = len(prompt) // tokens.TOKEN_BYTES, len(output) // tokens.TOKEN_BYTES
        return self.engine.submit(Request(*lengths, keys), listener, **how)

    async def _embed(self, data: bytes, client: DirectClient) -> None:
        call, body = self._reader.embedding(data)
        if client.gone:
            return
        computed = Computed(len(call.prompts))
        client.on_gone = computed.leave
        sequences = [self._submit(call, prompt, b"", computed) for prompt in call.prompts]
        try:
            await computed.done
        finally:
            self._abandon(sequences)
        if client.gone:
            return
        for sequence in sequences:
            self._metrics.ended(sequence, self._time(), STOP)
        length = body.dimensions or EMBEDDING_SIZE
        vectors = [_vector(prompt, length) for prompt in call.prompts]
        as_base64 = body.encoding_format == "base64"
        found = [
            {
                "object": "embedding",
                "index": index,
                "embedding": b64encode(pack(f"<{length}f", *vector)).decode()
                if as_base64
                else vector,
            }
            for index, vector in enumerate(vectors)
        ]
        counts = answers.usage(sequences, 0, self._options.show_cached)
        reply = {"object": "list", "model": call.model, "data": found, "usage": counts}
        _reply(client, 200, reply)

    def _abandon(self, sequences: list[Sequence]) -> None:
        """Stop what still runs: the client has left, or the server is going down."""
        for sequence in sequences:
            if self._half is not None:
                self._half.fetcher.give_up(sequence)
            if self.engine.abort(sequence):
                self._metrics.aborted()


async def serve(profile: Profile, options: Options, host: str, port: int) -> None:
    """Run a simulated engine until the process is told to stop."""
    limits = Server(keep_alive=KEEP_ALIVE)
    protocol: Any = partial(GatewayProtocol, lambda: limits, lambda code: None)
    config = uvicorn.Config(
        SimServer(profile, options),
        host=host,
        port=port,
        http=protocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    await uvicorn.Server(config).serve()


class Computed:
    """Listens for the end of prompts that are only computed.

    Attributes:
        done: set when all are, or nobody waits for them any more.
    """

    def __init__(self, prompts: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = prompts

    def on_first_token(self, now: float) -> None: ...
    def on_token(self, now: float) -> None: ...

    def on_finish(self, now: float) -> None:
        self._left -= 1
        if not self._left:
            self.leave()

    def leave(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def _read(scope: Scope, receive: Receive) -> bytes:
    """The body.

    Raises:
        ApiError: it is of another type than JSON, or the client left before its end.
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError("The client left.", param=None)
        parts.append(message["body"])
        if not message["more_body"]:
            break
    kind = _header(scope, b"content-type").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiError("Unsupported Media Type: Only 'application/json' is allowed", param=None)
    return b"".join(parts)


def _header(scope: Scope, wanted: bytes) -> bytes:
    headers: Headers = scope["headers"]
    return next((value for name, value in headers if name == wanted), b"")


def _vector(prompt: bytes, length: int) -> list[float]:
    random = Random(prompt)
    values = [random.gauss(0, 1) for _ in range(length)]
    norm = sum(value * value for value in values) ** 0.5
    return [value / norm for value in values]


def _reply(client: DirectClient, status: int, data: dict[str, Any]) -> None:
    if not client.gone:
        body = answers.encode(data)
        client.start(status, JSON, len(body))
        client.write(body)
        client.end()
