"""The tables of docs/reliability.md are true: each row is provoked, each column is looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import StartGateway
from tests.harness.behaviour import Behaviour, Cut
from tests.harness.fake_backend import FakeBackend, Health
from tests.harness.gateway_process import ROOT, GatewayProcess, Metrics
from tests.harness.raw import Answer
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, Json
from tests.process.full_listener import FullListener

SETTINGS: Json = {
    "health": {"interval": 0.4, "timeout": 0.4},
    "breaker": {"failures": 1000, "window": 600.0},
    "timeouts": {"connect": 0.6, "first_byte": 60.0, "idle": 1.0},
    "policy": {"name": "round_robin"},
    "server": {"max_body": 10_000, "body_timeout": 0.4},
    "scheduling": {"decode": {"max_requests": 1, "max_waiting": 1, "max_wait": 1.0}},
}
MODELS = {"first_byte": {"first_byte": 0.6}, "total": {"total": 0.8}}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"
CONTENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
ERROR = b'data: {"error": {"message": "engine died", "type": "server_error"}}\n\n'
NO_MODEL = b'{"error": {"message": "The model `m` does not exist.", "code": "model_not_found"}}'


def tables() -> list[list[list[str]]]:
    """Cells of the rows of each table of the page, without its header."""
    found: list[list[list[str]]] = []
    text = (ROOT / "docs" / "reliability.md").read_text()
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        _, _, *rows = block.splitlines()
        found.append([[cell.strip() for cell in row.strip("|").split("|")] for row in rows])
    return found


FAILURES, REFUSALS, *_ = tables()


@dataclass(frozen=True)
class Fault:
    """How a failure is brought about.

    Attributes:
        behaviour: of the backend that fails.
        streaming: the request asks for a stream.
        dead, full, hung: nothing listens there; it accepts no connection; its probes hang too.
        limit: whose limits the model has.
        own: the status that is passed on, and the body if it is not an ordinary one.
    """

    behaviour: Json
    streaming: bool = False
    dead: bool = False
    full: bool = False
    hung: bool = False
    limit: str = ""
    own: int | None = None
    body: bytes | None = None


def statuses(*codes: int) -> list[Fault]:
    return [Fault({"status": code}, own=code) for code in codes]


def stream_of(data: bytes) -> list[Fault]:
    sent = {"script": (SSE % (len(data), data),)}
    return [Fault(sent, streaming=True, own=200, body=data)]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-"
FAULTS: dict[str, list[Fault]] = {
    "the connection is refused": [Fault({}, dead=True)],
    "no connection within `timeouts.connect`": [Fault({}, full=True)],
    "the connection ends before an answer": [Fault({"script": (cut,)}) for cut in Cut],
    "it ends inside the answer's head": [Fault({"script": (HEAD, Cut.FIN)})],
    "it ends after a stream's head, before any of the stream": [
        Fault({"early_head": True, "ttft": 0.2, "cut_after": 0}, streaming=True)
    ],
    "it ends inside a JSON body": [Fault({"body": b"x" * 900, "cut_after": 300})],
    "it ends inside a stream": [
        Fault({"cut_after": 3}, streaming=True),
        Fault({"cut_after": 3, "gzip": True}, streaming=True),
    ],
    "the answer is not HTTP": [Fault({"script": (b"banana\r\n\r\n",)})],
    "no byte within `timeouts.first_byte`": [Fault({"hang": True}, limit="first_byte")],
    "silence of `timeouts.idle` inside a stream": [Fault({"silent_after": 2}, streaming=True)],
    "no byte within `timeouts.total`": [Fault({"hang": True}, limit="total")],
    "a stream is longer than `timeouts.total`": [
        Fault({"n_tokens": 1000, "itl": 0.02}, streaming=True, limit="total")
    ],
    "probes find the backend hung, and it sends nothing": [Fault({"hang": True}, hung=True)],
    "status 400, 401, 403, 404, 408, 409, 413 or 422": statuses(
        400, 401, 403, 404, 408, 409, 413, 422
    ),
    "status 404 that says that there is no such model": [
        Fault({"status": 404, "body": NO_MODEL}, own=404, body=NO_MODEL)
    ],
    "status 429, 503 or 529": statuses(429, 503, 529),
    "status 500 or 502": statuses(500, 502),
    "status 504": statuses(504),
    "status 501 or 505": statuses(501, 505),
    "a stream begins with an error event": stream_of(ERROR),
    "an error event comes later in a stream": stream_of(CONTENT + ERROR),
}


@pytest.fixture(scope="module")
def gw(module_gateway: StartGateway) -> GatewayProcess:
    models = {
        f"{limit}-{count}": timeouts for limit, timeouts in MODELS.items() for count in (1, 2)
    }
    settings = {**SETTINGS, "timeouts": {**SETTINGS["timeouts"], "models": models}}
    return module_gateway([], ready=False, **settings)


class Site:
    """So many backends of one model, of which the one that is asked first fails."""

    def __init__(self, gw: GatewayProcess, fault: Fault, count: int, stack: ExitStack) -> None:
        self.gw = gw
        self.fault = fault
        self.model = f"{fault.limit or 'any'}-{count}"
        self.failed: list[FakeBackend] = []
        self.backends = [stack.enter_context(FakeBackend(self.model)) for _ in range(count)]
        self.ids = []
        for backend in self.backends:
            backend.rule = self._rule(backend)
            self.ids.append(gw.admin("POST", "/backends", {"url": backend.url})["id"])
            stack.callback(gw.admin, "DELETE", f"/backends/{self.ids[-1]}")
        gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == count)
        if fault.dead or fault.full:
            self.failed.append(self.backends[0])
            self.backends[0].stop()
        if fault.full:
            stack.enter_context(FullListener(self.backends[0].port))

    def _rule(self, backend: FakeBackend) -> Callable[[Recorded], Behaviour | None]:
        def rule(request: Recorded) -> Behaviour | None:
            if self.failed:
                return None
            self.failed.append(backend)
            if self.fault.hung:
                backend.health = Health.HANG
            return Behaviour(**self.fault.behaviour)

        return rule

    def ask(self) -> Answer:
        body = CHAT.stream() if self.fault.streaming else CHAT.body(["hello"])
        with self.gw.client() as client:
            return client.exchange(CHAT.path, body | {"model": self.model})

    def entry(self) -> Json:
        """Of the one that failed."""
        id = self.ids[self.backends.index(self.failed[0])]
        return dict(self.gw.admin("GET", f"/backends/{id}"))


def new_errors(before: Metrics, after: Metrics) -> dict[str, float]:
    name = "prefixgate_upstream_errors_total"
    old, new = before.by(name, "kind"), after.by(name, "kind")
    return {kind: n - old.get(kind, 0.0) for kind, n in new.items() if n != old.get(kind, 0.0)}


def test_every_row_is_provoked() -> None:
    assert [row[0] for row in FAILURES] == list(FAULTS)
    assert [row[0] for row in REFUSALS] == list(REFUSED)


CASES = [
    pytest.param(row, fault, id=f"{row[0]}-{number}")
    for row in FAILURES
    for number, fault in enumerate(FAULTS.get(row[0], ()))
]


@pytest.mark.parametrize(("row", "fault"), CASES)
def test_alone(gw: GatewayProcess, row: list[str], fault: Fault) -> None:
    """What the client gets, who is blamed, and what moves, when nobody else can serve."""
    _, gets, _, blamed, kind, outcome = row
    with ExitStack() as stack:
        site = Site(gw, fault, 1, stack)
        before = gw.metrics()
        answer = site.ask()
        outcomes = gw.outcomes_since(before)
        errors = new_errors(before, gw.metrics())
        entry = site.entry()
    name = kind.strip("`")
    if gets == "the same":
        assert answer.status == fault.own
        assert fault.body is None or answer.body == fault.body
    elif gets == "200, error event":
        assert answer.status == 200
        assert [event["error"]["code"] for event in answer.stream.errors] == [name]
        assert not answer.stream.done
    else:
        assert answer.status == int(gets)
        assert answer.json["error"]["code"] == name
    assert errors == ({} if kind == "none" else {name: 1})
    assert outcomes == {outcome.strip("`"): 1}
    assert entry["breaker"]["failures"] == (1 if blamed == "breaker" else 0)
    assert (entry["busy_seconds"] is not None) == (blamed == "avoided")
    assert (answer.header("retry-after") is not None) == (blamed == "avoided")


@pytest.mark.parametrize(("row", "fault"), CASES)
def test_with_another(gw: GatewayProcess, row: list[str], fault: Fault) -> None:
    """Whether another backend is tried, and who is blamed once it has served."""
    _, _, tried, blamed, _, outcome = row
    with ExitStack() as stack:
        site = Site(gw, fault, 2, stack)
        before = gw.metrics()
        retried = "prefixgate_retries_total"
        answers = [site.ask()]
        if (fault.dead or fault.full) and gw.metrics().total(retried) == before.total(retried):
            answers.append(site.ask())  # they take turns
        outcomes = gw.outcomes_since(before, len(answers))
        retries = gw.metrics().total(retried) - before.total(retried)
        entry = site.entry()
        asked = sum(len(backend.requests) for backend in site.backends)
    assert retries == (tried == "yes")
    if tried == "yes":
        assert outcomes == {"ok": len(answers)}
        assert {answer.status for answer in answers} == {200}
        assert asked == (len(answers) if fault.dead or fault.full else 2)
    else:
        assert outcomes == {outcome.strip("`"): 1}
        assert asked == 1
    expected = {"breaker": 1, "if served elsewhere": 1}.get(blamed, 0)
    assert entry["breaker"]["failures"] == expected
    assert (entry["busy_seconds"] is not None) == (blamed == "avoided")


# what the gateway refuses


@pytest.fixture(scope="module")
def served(gw: GatewayProcess) -> Iterator[FakeBackend]:
    with FakeBackend("served") as backend:
        id = gw.admin("POST", "/backends", {"url": backend.url})["id"]
        gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1)
        yield backend
        gw.admin("DELETE", f"/backends/{id}")


BODY = CHAT.body(["hello"]) | {"model": "served"}


def asks(
    body: Any, path: str = CHAT.path, **options: Any
) -> Callable[[GatewayProcess, FakeBackend], Answer]:
    def ask(gw: GatewayProcess, backend: FakeBackend) -> Answer:
        with gw.client() as client:
            return client.exchange(path, body, **options)

    return ask


def sends_slowly(gw: GatewayProcess, backend: FakeBackend) -> Answer:
    with gw.client() as client:
        client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        return client.answer()


def fills(waiting: int) -> Callable[[GatewayProcess, FakeBackend], Answer]:
    def ask(gw: GatewayProcess, backend: FakeBackend) -> Answer:
        backend.behave(ttft=30.0)
        with ExitStack() as stack:
            for _ in range(1 + waiting):
                client = stack.enter_context(gw.client())
                client.request(CHAT.path, BODY)
                gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 1)
            gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == waiting)
            answer = stack.enter_context(gw.client()).exchange(CHAT.path, BODY)
        gw.settles_idle()
        return answer

    return ask


def loses_all(gw: GatewayProcess, backend: FakeBackend) -> Answer:
    backend.health = Health.UNAVAILABLE
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 0)
    answer = asks(BODY)(gw, backend)
    backend.health = Health.OK
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1)
    return answer


REFUSED = {
    "the body is not what the route takes": asks(b"{"),
    "the path is one of an engine's controls": asks(b"{}", path="/sleep"),
    "no backend serves the model": asks(BODY | {"model": "nobody"}),
    "the route takes another method": asks(None, method="GET"),
    "the body takes too long": sends_slowly,
    "the body is too large": asks(b"x" * 20_000),
    "the body's coding is none that is read": asks(BODY, headers=[("content-encoding", "br")]),
    "too many requests wait": fills(1),
    "it has waited as long as it may": fills(0),
    "every backend of the model is out": loses_all,
}


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row[0])
def test_refused_by_the_gateway(gw: GatewayProcess, served: FakeBackend, row: list[str]) -> None:
    failure, gets, outcome = row
    served.reset()
    before = gw.metrics()
    answer = REFUSED[failure](gw, served)
    assert answer.status == int(gets)
    assert answer.json["error"]["message"]
    after = gw.settles(
        lambda metrics: (
            metrics.outcomes.get(outcome.strip("`"), 0) > before.outcomes.get(outcome.strip("`"), 0)
        )
    )
    assert new_errors(before, after) == {}
    assert (answer.header("retry-after") is not None) == (answer.status in (429, 503))
