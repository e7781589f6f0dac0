"""Work that goes on beside the requests, whatever befalls it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.shared.background import Background


def test_what_fails_is_begun_again_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.shared.background.PAUSE", 0.0)

    async def run() -> None:
        begun = 0
        again = asyncio.Event()

        async def work() -> None:
            nonlocal begun
            begun += 1
            if begun == 3:
                again.set()
                await asyncio.Event().wait()
            raise RuntimeError("a bug")

        background = Background("a part")
        background.start(work)
        await asyncio.wait_for(again.wait(), 10)
        await background.stop()
        assert begun == 3

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "a part: something failed; it goes on"
    ] * 2


def test_a_stop_ends_all_of_it() -> None:
    async def run() -> None:
        ended: list[str] = []

        def work(name: str) -> asyncio.Future[None]:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda _: ended.append(name))
            return future

        background = Background("a part")
        background.start(lambda: work("one"), lambda: work("other"))
        background.start(lambda: work("later"))
        await asyncio.sleep(0)
        await background.stop()
        assert sorted(ended) == ["later", "one", "other"]
        await background.stop()

    asyncio.run(run())
