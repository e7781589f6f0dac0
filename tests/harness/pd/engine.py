"""Fake engines of which some prefill and others decode, and what they say to each other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from gateway.types import Clock, Role
from tests.harness import bodies
from tests.harness.answer import POLL, AnswerWriter, Wire
from tests.harness.behaviour import Behaviour
from tests.harness.fake_backend import FakeBackend
from tests.harness.pd.kv import Fate, Kv, Ledger
from tests.harness.pd.leg import CAPS, Leg, LoadFailed, Part, Refused, check
from tests.harness.recorded import Recorded

GARBAGE = ("gar", "bage ")
"""What an engine says that has read blocks which were somebody else's by then."""


class Connector(Protocol):
    """The engine's side of one protocol.

    Attributes:
        name: of the protocol, as `PdEngine` has it.
        flat: errors are not nested.
        lease: seconds that a prefill engine keeps blocks for a decode engine by default.
        notifies: a decode engine that gives a request up tells the prefill engine.
    """

    name: str
    flat: bool
    lease: float
    notifies: bool

    def start(self, engine: PdEngine) -> None:
        """Put the pages there by which the engine says what it is."""

    def part(self, engine: PdEngine, leg: Leg) -> Part:
        """What a request wants of the engine.

        Raises:
            Refused: it makes no sense.
        """

    def check_prefill(self, engine: PdEngine, leg: Leg) -> None:
        """Before anything is computed; may refuse."""

    def computed(self, engine: PdEngine, leg: Leg, how: Behaviour) -> Behaviour:
        """The prompt is computed: keep its blocks for the decode engine, and answer."""

    async def delivered(self, engine: PdEngine, leg: Leg) -> None:
        """Wait for what the answer of the prefill leg has to wait for; may refuse."""

    async def find(self, engine: PdEngine, leg: Leg) -> Kv | None:
        """The blocks that a decode leg means, once they are there; None when none are to be had
        and none are needed.

        Raises:
            LoadFailed: they cannot be read.
        """


@dataclass(slots=True)
class Fabric:
    """The network between engines.

    Attributes:
        store: prompts whose KV cache is in the store that all share.
    """

    engines: list[PdEngine] = field(default_factory=list)
    store: dict[str, int] = field(default_factory=dict)

    def prefill(self, engine_id: object) -> PdEngine | None:
        return next((each for each in self.engines if engine_id in each.engine_ids), None)


class PdEngine(FakeBackend):
    """A fake backend that is one half of a pair.

    It does with each request what a real engine would: refuses what that would refuse, waits for
    whom it would wait, keeps blocks as long. What a real engine would take silently, to answer
    wrongly or late, is in `complaints`. How it behaves beyond that, `default`, `queued` and `rule`
    say as for any fake backend: `ttft` and `until` are the time that a prefill takes, and at a
    decode engine the time from the end of the transfer to the first token.

    Attributes:
        legs: what came, in the order of arrival.
        kv: the blocks kept for others.
        clock: of the leases.
        transfer: seconds that a decode engine takes to read a prompt's KV cache.
        patience: seconds that one half waits for the other.
        recompute: prefill at the decode engine what cannot be read, in place of an error.
        version: of the engine; two that differ cannot read from each other.
        first_token_stops: the model's first token ends the answer.
        late: seconds from when a prompt is computed until the answer that says so begins. Whoever
            leaves meanwhile has its blocks kept, as with vLLM.
        spoil: changes a prefill answer's bytes before they are sent.
        dp_size: ranks of data parallelism, each an engine with an id of its own.
        engine_ids: by rank.
    """

    def __init__(
        self,
        connector: Connector,
        role: Role,
        fabric: Fabric,
        *models: str,
        dp_size: int = 1,
        clock: Clock = time.monotonic,
        **options: Any,
    ) -> None:
        super().__init__(*models, **options)
        self.connector = connector
        self.role = role
        self.fabric = fabric
        self.clock = clock
        self.legs: list[Leg] = []
        self.kv = Ledger(connector.lease, clock)
        self.transfer = 0.0
        self.patience = 300.0
        self.recompute = False
        self.version = "0.33.0"
        self.first_token_stops = False
        self.late = 0.0
        self.spoil: Callable[[bytes], bytes] | None = None
        self.dp_size = dp_size
        id = f"engine-{self.port}"
        self.engine_ids = [id] if dp_size == 1 else [f"{id}_dp{rank}" for rank in range(dp_size)]
        self.companions: list[FakeBackend] = []
        connector.start(self)
        fabric.engines.append(self)

    @property
    def complaints(self) -> list[str]:
        return [what for leg in self.legs for what in leg.complaints]

    def parts(self, part: Part) -> list[Leg]:
        return [leg for leg in self.legs if leg.part is part]

    def reset(self) -> None:
        super().reset()
        self.legs = []
        self.kv.entries.clear()
        self.kv.unwanted.clear()
        self.kv.lease = self.connector.lease
        self.transfer, self.patience, self.late = 0.0, 300.0, 0.0
        self.recompute = self.first_token_stops = False
        self.spoil = None

    def stop(self) -> None:
        for companion in self.companions:
            companion.stop()
        super().stop()

    async def answer(self, wire: Wire, request: Recorded) -> bool:
        if request.path.endswith("/abort_request"):
            self._abort(request)
        if not request.path.endswith(tuple(CAPS)):
            return await super().answer(wire, request)
        how = self.behaviour_for(request)
        leg = Leg(request)
        refused = self._look(leg)
        self.legs.append(leg)
        settle = partial(self._settle, leg, how, refused)
        return await AnswerWriter(wire, request, replace(how, hang=False), settle).send()

    def _look(self, leg: Leg) -> Refused | None:
        """What can be said of a request before any work."""
        try:
            leg.body = _fields(leg.request)
            leg.part = self.connector.part(self, leg)
            if leg.body.get("model") not in (None, *self.models):
                raise Refused("no such model", 404)
            self._check_id(leg)
            check(leg)
            if leg.part is not Part.WHOLE:
                wrong = self.role not in (Role.UNIFIED, leg.part)
                leg.complain(wrong, f"a {leg.part} leg at a {self.role} engine")
            if leg.part is Part.PREFILL:
                self.connector.check_prefill(self, leg)
        except Refused as refused:
            return refused
        return None

    async def _settle(self, leg: Leg, how: Behaviour, refused: Refused | None) -> Behaviour:
        try:
            if refused is not None:
                raise refused
            late = self.late if leg.part is Part.PREFILL else 0.0
            return replace(await self._work(leg, how), ttft=late, until=None)
        except Refused as refused:
            self._left(leg)
            return self._error(how, refused.status, str(refused))
        except asyncio.CancelledError:
            if leg.request.closed is not None:
                self._left(leg)
            raise
        finally:
            self.notify()

    async def _work(self, leg: Leg, how: Behaviour) -> Behaviour:
        how = replace(how, prompt_tokens=leg.tokens)
        if leg.part is Part.PREFILL:
            return await self._prefill(leg, how)
        if leg.part is Part.DECODE:
            return await self._decode(leg, how)
        await _moment(how)
        return how

    async def _prefill(self, leg: Leg, how: Behaviour) -> Behaviour:
        await _moment(how)
        if leg.aborted:
            raise Refused("Aborted", 500)
        if how.status >= 400:
            return how
        answer = self.connector.computed(self, leg, replace(how, texts=("t0 ",)))
        await self.connector.delivered(self, leg)
        if self.spoil is not None and answer.body is not None:
            answer = replace(answer, body=self.spoil(answer.body))
        return answer

    async def _decode(self, leg: Leg, how: Behaviour) -> Behaviour:
        if how.status >= 400:
            await _moment(how)
            self._left(leg)
            return how
        try:
            kv = await self.connector.find(self, leg)
        except LoadFailed as failed:
            leg.complaints.append(str(failed))
            if not self.recompute:
                return self._error(how, 500, "Internal server error")
            kv = None
        if kv is not None:
            how = await self._read(leg, kv, how)
        await _moment(how)
        return how

    async def _read(self, leg: Leg, kv: Kv, how: Behaviour) -> Behaviour:
        if kv.fate is not Fate.HELD:
            leg.complaints.append(f"it reads blocks that were {kv.fate}")
            return replace(how, texts=GARBAGE)
        leg.kv = kv
        kv.readers += 1
        try:
            await asyncio.sleep(self.transfer)
            if how.hang:
                await asyncio.Event().wait()
        finally:
            kv.readers -= 1
        kv.end(Fate.READ)
        cached = kv.tokens
        if isinstance(kv.params, dict):
            cached = kv.params.get("remote_prefill_cached_tokens", cached)
        return replace(how, prompt_tokens=kv.tokens, cached_tokens=cached)

    def _abort(self, request: Recorded) -> None:
        """As SGLang's: whatever has a `rid` that begins like this one."""
        rid = str(request.json["rid"])
        for leg in self.legs:
            if str(leg.body.get("rid", "")).startswith(rid):
                leg.aborted = True
                if leg.part is Part.PREFILL and leg.kv is not None:
                    leg.kv.end(Fate.RELEASED)

    def _left(self, leg: Leg) -> None:
        """The peer gave a request up before it had come to anything."""
        kv = leg.kv
        if leg.part is Part.DECODE and kv is None and self.connector.notifies:
            kv = self._unread(leg)
        if kv is not None:
            kv.end(Fate.RELEASED)

    def _unread(self, leg: Leg) -> Kv | None:
        """The blocks that a decode leg names and has not begun to read. Where there are none yet,
        the prefill engine is told not to keep them."""
        params = leg.body.get("kv_transfer_params") or {}
        prefill = self.fabric.prefill(params.get("remote_engine_id"))
        key = str(params.get("remote_request_id") or params.get("transfer_id"))
        if prefill is None:
            return None
        prefill.kv.unwanted.add(key)
        return prefill.kv.find(key)

    def _check_id(self, leg: Leg) -> None:
        if leg.part is Part.WHOLE:
            return
        leg.complain(not leg.id, "no x-request-id")
        others = (each for each in self.legs if each is not leg and each.id == leg.id)
        tracked = any(
            not each.over or (each.kv is not None and each.kv.fate is Fate.HELD)
            for each in others
            if each.part is leg.part
        )
        leg.complain(tracked, f"x-request-id {leg.id} is in use")

    def _error(self, how: Behaviour, status: int, message: str) -> Behaviour:
        error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
        body = {"object": "error", **error} if self.connector.flat else {"error": error}
        return replace(how, status=status, body=json.dumps(body).encode())


def whole_answer(leg: Leg, how: Behaviour, reason: str = "length") -> dict[str, Any]:
    """An answer that is not streamed, of one token."""
    answer = json.loads(bodies.json_body(leg.path, leg.body, leg.request.body, how))
    for choice in answer.get("choices", ()):
        choice["finish_reason"] = reason
    return dict(answer)


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for what engines on other threads do.

    Returns:
        Whether it came to hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL)
    return True


def differences(wanted: Any, got: Any) -> list[str]:
    """What in an object is not as it was given out."""
    if not isinstance(wanted, dict) or not isinstance(got, dict):
        return [] if wanted == got else [f"{got!r} for {wanted!r}"]
    names: Sequence[str] = sorted(wanted.keys() | got.keys())
    return [
        f"{name} is {got.get(name, 'missing')!r}, not {wanted.get(name, 'missing')!r}"
        for name in names
        if json.dumps(wanted.get(name, "missing")) != json.dumps(got.get(name, "missing"))
    ]


def _fields(request: Recorded) -> dict[str, Any]:
    try:
        body = request.json
    except ValueError as error:
        raise Refused(f"the body cannot be read: {error}") from None
    if not isinstance(body, dict):
        raise Refused("the body is no object")
    return body


async def _moment(how: Behaviour) -> None:
    """The time that the work takes."""
    await asyncio.sleep(how.ttft)
    while how.until is not None and not how.until.is_set():  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    if how.hang:
        await asyncio.Event().wait()
