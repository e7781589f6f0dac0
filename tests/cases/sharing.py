"""Gateways that share a Redis, and one that is the same but for that it hears of nobody."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import CHAT, Json, text

PROMPT = 3000
"""Characters of a conversation's first turn: many blocks."""
WAIT = 20.0
"""Seconds after which something is taken never to come. What is right comes far sooner."""
TURNS = {"policy": {"name": "round_robin"}}


class Group:
    """Gateways before the same backends. The first one places what is new by turns, so that no
    other could find out by itself where something is.

    Args:
        redis: its section of the settings, but for the namespace.
        each: settings of the gateways that share, besides those of all; one for each of them.
        environments: of the processes of these.
        settings: of all.

    Attributes:
        gateways: those that share.
        cut: the control: a namespace of its own.
    """

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        redis: Json,
        *,
        each: Sequence[Json] = (TURNS, {}),
        environments: Sequence[dict[str, str]] = (),
        backends: int = 3,
        **settings: Any,
    ) -> None:
        self.backends = [stack.enter_context(FakeBackend()) for _ in range(backends)]
        self._stack = stack
        self._directory = directory
        self._settings = {
            "backends": [{"url": backend.url} for backend in self.backends],
            **settings,
        }
        self._redis = redis
        with ThreadPoolExecutor() as pool:
            cut = pool.submit(self.start, "apart", {})
            shared = [
                pool.submit(self.start, "one", more, environments[number] if environments else None)
                for number, more in enumerate(each)
            ]
        self.cut = cut.result()
        self.gateways = [one.result() for one in shared]

    def start(
        self,
        namespace: str = "one",
        more: Json | None = None,
        environment: dict[str, str] | None = None,
    ) -> GatewayProcess:
        """One more gateway, which is ready."""
        redis = {**self._redis, "namespace": namespace}
        settings = {**self._settings, "redis": redis, **(more or {})}
        gw = GatewayProcess(settings, self._directory, environment=environment)
        return self._stack.enter_context(gw)

    @property
    def all(self) -> list[GatewayProcess]:
        return [*self.gateways, self.cut]


def place(gw: GatewayProcess, turns: Sequence[str]) -> str:
    """Send a request.

    Returns:
        The id of the backend that it went to.
    """
    answer = gw.post(CHAT.path, CHAT.body(turns))
    assert answer.status_code == 200, answer.text
    return answer.headers["x-prefixgate-backend"]


def known(gw: GatewayProcess, turns: Sequence[str]) -> dict[str, int]:
    """Blocks of a prompt that are believed to be anywhere, by backend id."""
    return gw.explain(CHAT.path, CHAT.body(turns)).blocks


def conversations(name: str, count: int) -> Iterator[list[str]]:
    """First turns."""
    for number in range(count):
        yield [text(f"{name} {number}", PROMPT)]


def until(what: str, holds: Callable[[], bool], timeout: float = WAIT) -> float:
    """Wait for something that comes by itself.

    Returns:
        Seconds that it took.
    """
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + timeout, f"not within {timeout} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began


def knows(gateways: Sequence[GatewayProcess], turns: Sequence[str], home: str) -> None:
    """Wait until all of them know that a prompt is there."""
    until("all know it", lambda: all(home in known(gw, turns) for gw in gateways))


def would_send(gateways: Sequence[GatewayProcess], turns: Sequence[str], home: str) -> None:
    """Wait until all of them would send a request where they know its beginning to be, for they
    know as well that nothing else is under way there."""
    body = CHAT.body(turns)

    def all_would() -> bool:
        explained = [gw.explain(CHAT.path, body) for gw in gateways]
        return all(home in each.blocks and each.backend == home for each in explained)

    until("all would send it there", all_would)


def is_shared(group: Group, name: str, count: int = 3) -> int:
    """What the first gateway learns the others use, and the control knows nothing of it.

    Returns:
        How many follow-ups the control sent elsewhere.
    """
    first, *others = group.gateways
    homes, apart = set(), 0
    for number, turns in enumerate(conversations(name, count)):
        home = place(first, turns)
        homes.add(home)
        assert known(group.cut, turns) == {}
        follow_up = [*turns, "an answer", "and then?"]
        would_send(others, follow_up, home)
        assert place(others[number % len(others)], follow_up) == home
        apart += place(group.cut, follow_up) != home
    assert len(homes) == len(group.backends)
    return apart


def all_serve(gateways: Sequence[GatewayProcess], urls: Sequence[str]) -> None:
    """Wait until these backends are the ones that requests can go to."""

    def serving(gw: GatewayProcess) -> set[str]:
        views = gw.admin("GET", "/backends")
        return {view["url"] for view in views if view["state"] == "healthy"}

    for gw in gateways:
        until(f"{urls} serve", lambda gw=gw: serving(gw) == set(urls))


def ask_anew(gateways: Sequence[GatewayProcess], each: int) -> Counter[int]:
    """Requests that have nothing in common, over connections of their own.

    Returns:
        How many answers had which status.
    """

    def ask(number: int) -> int:
        with gateways[number % len(gateways)].client() as client:
            body = CHAT.body([text(secrets.token_hex(), 200)])
            return client.exchange(CHAT.path, body).status

    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(ask, range(each * len(gateways))))


def all_know(gateways: Sequence[GatewayProcess], turns: list[str], home: str, blocks: int) -> int:
    """Wait until all know that more blocks of a prompt than these are there, and the same ones.

    Returns:
        How many that are.
    """
    counts: set[int] = set()

    def agree() -> bool:
        nonlocal counts
        counts = {known(gw, turns).get(home, 0) for gw in gateways}
        return len(counts) == 1 and min(counts) > blocks

    until("all know the turn", agree)
    return counts.pop()


def in_flight(gw: GatewayProcess) -> float:
    return gw.metrics().total("prefixgate_in_flight")


def shown(gateways: Sequence[GatewayProcess]) -> Json:
    """What the admin API says of backends, policy and scheduling, which is the same wherever it
    is asked."""
    told = ("id", "url", "source", "state", "models")
    answers = [
        {
            "backends": [
                {name: view[name] for name in told} for view in gw.admin("GET", "/backends")
            ],
            "scheduling": gw.admin("GET", "/scheduling"),
        }
        for gw in gateways
    ]
    assert all(each == answers[0] for each in answers)
    return answers[0]
