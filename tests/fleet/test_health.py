"""The prober against engines on real sockets, with rounds that the test starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.config import BackendConfig, Health
from gateway.fleet import health
from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import DETECT_EVERY, Prober
from gateway.types import EngineKind
from tests.fleet import engine as engines
from tests.fleet.engine import FakeEngine, engine, model_list, ok

AFTER = 3


class Rounds:
    """A prober whose rounds begin when the test says so."""

    def __init__(self, timeout: float) -> None:
        self.restarts: list[str] = []
        settings = Health(interval=7.0, timeout=timeout, unhealthy_after=AFTER)
        self.fleet = Fleet(settings, lambda: 0.0)
        self.fleet.on_restart(lambda backend: self.restarts.append(backend.id))
        self.prober = Prober(self.fleet, settings, self._sleep)
        self._next = asyncio.Event()
        self._asleep = asyncio.Event()

    async def _sleep(self, seconds: float) -> None:
        assert seconds == 7.0
        self._asleep.set()
        await self._next.wait()
        self._next.clear()

    def add(self, *fakes: FakeEngine) -> list[Backend]:
        return [self.fleet.add(BackendConfig(url=fake.url)).backend for fake in fakes]

    async def settle(self) -> None:
        await self._asleep.wait()
        await self.prober.settle()

    async def begin(self) -> None:
        """Have a further round begin."""
        await self._asleep.wait()
        self._asleep.clear()
        self._next.set()
        await self._asleep.wait()

    async def go(self, rounds: int = 1) -> None:
        """Have so many further rounds, each to its end."""
        for _ in range(rounds):
            await self.settle()
            await self.begin()
        await self.settle()


@contextlib.asynccontextmanager
async def rounds(timeout: float = 5.0) -> AsyncIterator[Rounds]:
    here = Rounds(timeout)
    await here.prober.start()
    try:
        yield here
    finally:
        await here.prober.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_added_backends_are_probed_at_once() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as v, engine(engines.sglang()) as s:
            await here.settle()
            [a, b] = here.add(v, s)
            await here.prober.settle()
            assert (a.state, a.kind, a.capacity_tokens) == (
                BackendState.HEALTHY,
                EngineKind.VLLM,
                16_000,
            )
            assert (b.state, b.kind) == (BackendState.HEALTHY, EngineKind.SGLANG)
            # generating a token to see whether the engine lives would load it
            assert "/health" not in s.asked

    run(test)


def test_backends_known_before_the_start_are_probed_with_it() -> None:
    async def test() -> None:
        here = Rounds(5.0)
        async with engine(engines.vllm()) as fake:
            [a] = here.add(fake)
            await asyncio.sleep(0)
            assert fake.asked == []
            await here.prober.start()
            await here.settle()
            assert a.state is BackendState.HEALTHY
            await here.prober.stop()

    run(test)


def test_L01_L16_a_dead_one_is_skipped_and_comes_back() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as a, engine(engines.vllm()) as b:
            [dead, alive] = here.add(a, b)
            await here.go()
            await a.stop()
            await here.go(AFTER)
            assert dead.state is BackendState.EJECTED
            assert dead.cause == "GET /v1/models: connection refused"
            assert alive.state is BackendState.HEALTHY
            await b.stop()
            await here.go(10)
            assert here.fleet.models() == set()
            await a.start()
            await b.start()
            await here.go()
            assert here.fleet.models() == {"m"}
            assert dead.state is alive.state is BackendState.HEALTHY

    run(test)


def test_L08_an_unloaded_model_is_gone_within_a_round() -> None:
    async def test() -> None:
        pages = engines.vllm("base", "lora-1", "lora-2")
        async with rounds() as here, engine(pages) as fake:
            [a] = here.add(fake)
            await here.go()
            assert a.models == ("base", "lora-1", "lora-2")
            fake.pages["/v1/models"] = model_list("base", "lora-1", owner="vllm")
            await here.go()
            assert a.models == ("base", "lora-1")
            assert not here.fleet.knows("lora-2")

    run(test)


def test_L10_a_restart_between_two_rounds_is_seen() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.sglang()) as fake:
            [a] = here.add(fake)
            await here.go()
            await fake.stop()
            await here.go()
            assert a.state is BackendState.HEALTHY
            fake.pages = engines.vllm(num_gpu_blocks=10)
            await fake.start()
            await here.go()
            assert here.restarts == [a.id]
            assert (a.kind, a.capacity_tokens) == (EngineKind.VLLM, 160)

    run(test)


def test_L10_a_restart_that_no_probe_met_shows_in_the_start_time() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as fake:
            [a] = here.add(fake)
            await here.go()
            fake.pages = engines.vllm(started=1.8e9)
            await here.go(DETECT_EVERY)
            assert here.restarts == [a.id]
            assert a.state is BackendState.HEALTHY

    run(test)


def test_every_backend_has_its_facts_read_anew() -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            here = await stack.enter_async_context(rounds())
            fakes = [await stack.enter_async_context(engine(engines.vllm())) for _ in range(6)]
            here.add(*fakes)
            await here.go()
            for fake in fakes:
                fake.asked.clear()
            await here.go(DETECT_EVERY)
            assert [fake.asked.count("/metrics") for fake in fakes] == [1] * 6
            assert [fake.asked.count("/v1/models") for fake in fakes] == [DETECT_EVERY] * 6

    run(test)


def test_L05_one_that_hangs_delays_no_other_and_no_round() -> None:
    async def test() -> None:
        async with (
            rounds(timeout=20.0) as here,
            engine(engines.vllm()) as a,
            engine(engines.vllm()) as b,
        ):
            [hung, good] = here.add(a, b)
            await here.go()
            a.hanging = {"/health"}
            before = b.asked.count("/health")
            for _ in range(3):
                await here.begin()
                await here.prober.settle(good)
            await a.caught.wait()
            assert b.asked.count("/health") == before + 3
            assert (hung.failed_probes, good.failed_probes) == (0, 0)

    run(test)


def test_one_that_hangs_is_put_out() -> None:
    async def test() -> None:
        async with rounds(timeout=0.05) as here, engine(engines.vllm()) as fake:
            [a] = here.add(fake)
            while a.state is not BackendState.HEALTHY:
                await here.go()
            fake.hanging = {"/health"}
            await here.go(AFTER)
            assert (a.state, a.cause) == (
                BackendState.EJECTED,
                "GET /health: no answer within 0.05 s",
            )
            fake.hanging = set()
            while a.state is not BackendState.HEALTHY:
                await here.go()

    run(test)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (200, BackendState.HEALTHY),
        (204, BackendState.HEALTHY),
        (401, BackendState.HEALTHY),
        (403, BackendState.HEALTHY),
        (302, BackendState.EJECTED),
        (429, BackendState.EJECTED),
        (500, BackendState.EJECTED),
        (503, BackendState.EJECTED),
    ],
)
def test_health_statuses(status: int, state: BackendState) -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as fake:
            [a] = here.add(fake)
            await here.go()
            fake.pages["/health"] = (status, b"")
            await here.go(AFTER)
            assert a.state is state
            assert here.restarts == []

    run(test)


def test_a_model_list_that_breaks_later_changes_nothing() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as fake:
            [a] = here.add(fake)
            await here.go()
            fake.pages["/v1/models"] = (500, b"oops")
            await here.go(2 * DETECT_EVERY)
            assert (a.state, a.models, a.kind) == (BackendState.HEALTHY, ("m",), EngineKind.VLLM)

    run(test)


def test_a_loading_engine_is_waited_for() -> None:
    async def test() -> None:
        pages = engines.llamacpp()
        loading = dict.fromkeys(pages, (503, b'{"error":{"message":"Loading model"}}'))
        async with rounds() as here, engine(loading) as fake:
            [a] = here.add(fake)
            await here.go()
            assert a.state is BackendState.STARTING
            assert a.cause == "GET /health: status 503"
            fake.pages = pages
            await here.go()
            assert (a.state, a.kind) == (BackendState.HEALTHY, EngineKind.LLAMACPP)

    run(test)


def test_a_failed_request_has_the_backend_probed_once_a_round() -> None:
    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as fake:
            [a] = here.add(fake)
            await here.go()
            fake.asked.clear()
            for _ in range(AFTER - 1):
                here.fleet.report_failure(a.id, "reset")
                await here.prober.settle()
            assert fake.asked.count("/health") == 2  # one to find the page, one to be sure
            assert a.state is BackendState.HEALTHY

    run(test)


def test_a_probe_that_ends_after_the_removal_changes_nothing() -> None:
    async def test() -> None:
        async with rounds(timeout=20.0) as here, engine(engines.vllm()) as fake:
            fake.hanging = {"/v1/models"}
            [a] = here.add(fake)
            await fake.caught.wait()
            here.fleet.remove(a.id)
            fake.hanging = set()
            [b] = here.add(fake)
            await here.prober.settle(b)
            assert b.state is BackendState.HEALTHY
            assert a.state is BackendState.REMOVED

    run(test)


def test_a_bug_in_a_probe_ends_neither_the_prober_nor_goes_unseen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: object) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with rounds() as here, engine(engines.vllm()) as fake:
            with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
                patch.setattr(health, "detect", broken)
                [a] = here.add(fake)
                await here.go()
            assert a.cause == "the probe failed: ZeroDivisionError"
            assert "ZeroDivisionError" in caplog.text
            await here.go()
            assert a.state is BackendState.HEALTHY

    run(test)


def test_stopping_ends_hanging_probes() -> None:
    async def test() -> None:
        async with engine(engines.vllm()) as fake:
            fake.hanging = {"/v1/models"}
            async with rounds(timeout=20.0) as here:
                here.add(fake)
                await fake.caught.wait()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert all("_probe" not in repr(task) for task in others)

    run(test)


def test_a_base_path_is_kept_in_probes() -> None:
    async def test() -> None:
        pages = {f"/poc-1{path}": page for path, page in engines.vllm().items()}
        pages["/v1/models"] = ok(b"wrong")
        async with rounds() as here, engine(pages) as fake:
            a = here.fleet.add(BackendConfig(url=f"{fake.url}/poc-1/")).backend
            await here.go()
            assert (a.state, a.kind) == (BackendState.HEALTHY, EngineKind.VLLM)
            assert all(path.startswith("/poc-1/") for path in fake.asked)

    run(test)
