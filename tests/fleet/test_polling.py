"""The poller against engines on real sockets, with rounds that the test starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.config import BackendConfig, Health
from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.engines.engine import EngineLoad
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet
from gateway.fleet.polling import BELIEVED, POLLS_PER_SECOND, LoadPoller
from gateway.types import EngineKind
from tests.fleet import engine as engines
from tests.fleet.engine import FakeEngine, engine, ok

INTERVAL = 2.0
LOAD = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
LISTED = (("m",), {"m": 4096})


class Rounds:
    """A poller whose rounds begin when the test says so, and what it hears."""

    def __init__(self, **settings: float | None) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.heard: list[tuple[str, EngineLoad | str]] = []
        self.restarts: list[str] = []
        given: dict[str, float | None] = {"load_interval": INTERVAL, "timeout": 5.0, **settings}
        self.settings = Health(**given)
        self.fleet = Fleet(self.settings, lambda: self.now)
        self.fleet.on_restart(lambda backend: self.restarts.append(backend.id))
        self.poller = LoadPoller(self.fleet, self.settings, self, lambda: self.now, self._sleep)
        self._next = asyncio.Event()
        self._asleep = asyncio.Event()
        self.got = asyncio.Event()

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep.set()
        await self._next.wait()
        self._next.clear()

    # LoadListener

    def asked(self, id: str) -> None:
        pass

    def answered(self, id: str, said: EngineLoad) -> None:
        self.heard.append((id, said))
        self.got.set()

    def failed(self, id: str) -> None:
        self.heard.append((id, "failed"))

    def lost(self, id: str) -> None:
        self.heard.append((id, "lost"))

    # the test

    def add(self, fake: FakeEngine, kind: EngineKind = EngineKind.VLLM) -> Backend:
        """A backend that serves."""
        backend = self.fleet.add(BackendConfig(url=fake.url)).backend
        self.fleet.probe_succeeded(backend, EngineFacts(kind, "/health", *LISTED))
        return backend

    async def begin(self) -> None:
        await self._asleep.wait()
        self._asleep.clear()
        self.now += INTERVAL
        self._next.set()
        await self._asleep.wait()

    async def go(self, rounds: int = 1) -> list[EngineLoad | str]:
        """What is heard in so many further rounds."""
        self.heard.clear()
        for _ in range(rounds):
            await self.begin()
            await self.poller.settle()
        return [what for _, what in self.heard]


@contextlib.asynccontextmanager
async def rounds(**settings: float | None) -> AsyncIterator[Rounds]:
    here = Rounds(**settings)
    await here.poller.start()
    try:
        yield here
    finally:
        await here.poller.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def vllm(page: bytes = LOAD) -> engines.Pages:
    return engines.vllm() | {"/metrics": ok(page)}


def test_each_round_asks_who_serves_and_tells() -> None:
    async def test() -> None:
        async with rounds() as here, engine(vllm()) as fake, engine(engines.ollama()) as mute:
            here.add(fake)
            here.add(mute, EngineKind.OLLAMA)
            await here.poller.settle()
            assert await here.go(2) == [EngineLoad(3, 1, None, 0.5)] * 2
            assert set(fake.asked) == {"/metrics"}
            assert mute.asked == []
            assert here.slept[0] == INTERVAL

    run(test)


def test_one_that_begins_to_serve_is_asked_at_once() -> None:
    async def test() -> None:
        async with rounds() as here, engine(vllm()) as fake:
            backend = here.add(fake)
            await here.poller.settle()
            assert here.heard == [(backend.id, EngineLoad(3, 1, None, 0.5))]

    run(test)


def test_nobody_is_asked_where_that_is_off() -> None:
    async def test() -> None:
        async with rounds(load_interval=None) as here, engine(vllm()) as fake:
            here.add(fake)
            assert await here.go(3) == []
            assert fake.asked == []
            here.poller.settings = Health(load_interval=INTERVAL)
            assert await here.go() == [EngineLoad(3, 1, None, 0.5)]

    run(test)


def test_the_next_page_is_tried_where_the_first_says_nothing() -> None:
    async def test() -> None:
        pages = engines.llamacpp() | {
            "/metrics": (501, b"{}"),
            "/slots": ok([{"is_processing": True}]),
        }
        async with rounds() as here, engine(pages) as fake:
            here.add(fake, EngineKind.LLAMACPP)
            assert await here.go() == [EngineLoad(1)]

    run(test)


def test_what_is_old_is_lost_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with rounds() as here, engine(vllm()) as fake:
            backend = here.add(fake)
            await here.go()
            fake.pages["/metrics"] = (500, b"")
            caplog.clear()
            with caplog.at_level(logging.INFO, "prefixgate.fleet"):
                assert await here.go(int(BELIEVED)) == ["failed"] * int(BELIEVED)
                assert caplog.messages == []
                assert await here.go(3) == ["failed", "lost", "failed", "failed"]
                [said] = caplog.messages
                assert "GET /metrics: status 500" in said
                assert "--disable-log-stats" in said
                fake.pages["/metrics"] = ok(LOAD)
                assert await here.go() == [EngineLoad(3, 1, None, 0.5)]
                assert caplog.messages[1:] == [f"backend {backend.id} tells its load again"]

    run(test)


@pytest.mark.parametrize("page", [b"", b"# nothing of load\nother 1\n", b"\xff\x00", b"["])
def test_a_page_that_says_nothing_is_no_load_of_zero(page: bytes) -> None:
    async def test() -> None:
        async with rounds() as here, engine(vllm(page)) as fake:
            here.add(fake)
            await here.poller.settle()
            assert [what for _, what in here.heard] == ["failed", "lost"]

    run(test)


def test_L05_a_page_that_hangs_delays_nobody() -> None:
    async def test() -> None:
        async with (
            rounds(timeout=60.0) as here,
            engine(vllm()) as hung,
            engine(vllm()) as good,
        ):
            hung.hanging = {"/metrics"}
            here.add(hung)
            backend = here.add(good)
            for _ in range(3):
                await here.got.wait()
                here.got.clear()
                await here.begin()
            await here.got.wait()
            assert len(here.heard) == 4
            assert {id for id, _ in here.heard} == {backend.id}
            assert hung.asked == ["/metrics"]

    run(test)


def test_a_page_that_hangs_is_given_up_within_an_interval() -> None:
    async def test() -> None:
        async with rounds(timeout=60.0, load_interval=0.05) as here, engine(vllm()) as hung:
            hung.hanging = {"/metrics"}
            here.add(hung)
            await here.poller.settle()
            assert [what for _, what in here.heard] == ["failed", "lost"]

    run(test)


def test_who_does_not_serve_is_not_asked_and_what_it_said_is_lost() -> None:
    async def test() -> None:
        async with rounds() as here, engine(vllm()) as fake:
            backend = here.add(fake)
            await here.go()
            here.heard.clear()
            for _ in range(here.settings.unhealthy_after):
                here.fleet.probe_failed(backend, "GET /health: status 503")
            assert backend.state is BackendState.EJECTED
            assert here.heard == [(backend.id, "lost")]
            assert await here.go(2) == []
            here.fleet.remove(backend.id)
            assert await here.go() == []

    run(test)


def test_L10_a_restart_shows_in_the_start_time_or_in_counts_that_fall() -> None:
    def page(started: float | None, done: float) -> tuple[int, bytes]:
        start = b"" if started is None else b"process_start_time_seconds %f\n" % started
        return ok(LOAD + b"vllm:prompt_tokens_total %f\n" % done + start)

    async def test() -> None:
        async with rounds() as here, engine(vllm()) as fake:
            backend = here.add(fake)
            for started, done, restarts in (
                (1.7e9, 500.0, 0),
                (1.7e9, 900.0, 0),
                (1.8e9, 1500.0, 1),
                (1.8e9, 1501.0, 1),
                (None, 1600.0, 1),
                (None, 20.0, 2),
                (None, 20.0, 2),
                (None, 40.0, 2),
            ):
                fake.pages["/metrics"] = page(started, done)
                await here.go()
                assert here.restarts == [backend.id] * restarts, (started, done)

    run(test)


def test_L10_a_refused_poll_has_the_process_looked_at() -> None:
    async def test() -> None:
        async with rounds() as here, engine(vllm()) as fake:
            backend = here.add(fake)
            await here.go()
            suspects: list[str] = []
            here.fleet.on_suspicion(lambda backend: suspects.append(backend.id))
            await fake.stop()
            await here.go(3)
            assert suspects == [backend.id]
            assert backend.doubted

    run(test)


def test_a_large_fleet_is_asked_less_often() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as fake:
            for place in range(200):
                config = BackendConfig(url=f"{fake.url}/{place}")
                backend = here.fleet.add(config).backend
                here.fleet.probe_succeeded(
                    backend, EngineFacts(EngineKind.VLLM, "/health", *LISTED)
                )
            assert here.poller.interval == 200 / POLLS_PER_SECOND

    run(test)
