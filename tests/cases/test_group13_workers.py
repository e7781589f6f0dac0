"""Group 13, C03, and X04, with `--workers`: four processes behind one port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtests.redis.server import RedisServer
from tests.harness.fake_backend import FakeBackend
from tests.harness.routes import Json
from tests.workers.gateway import Crowd, Workers

COUNT = 4


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def test_C03_X04_four_workers_obey_as_one_and_a_new_run_counts_anew(
    redis: RedisServer, tmp_path: Path
) -> None:
    with FakeBackend() as a, FakeBackend() as b, FakeBackend() as c:
        settings = {
            "backends": [{"url": a.url}, {"url": b.url}],
            "policy": {"name": "round_robin"},
            "redis": {"url": redis.url, "timeout": 2.0},
        }
        workers = Workers(COUNT, settings, tmp_path)
        try:
            obey(workers, a, b, c)
            assert workers.scrape().total("prefixgate_requests_total") >= 300
        finally:
            workers.gw.stop()
        # Nothing of the earlier run is counted, and what was decided in it holds.
        workers = Workers(2, settings, tmp_path)
        try:
            assert workers.scrape().total("prefixgate_requests_total") == 0
            assert states(workers) == [dict.fromkeys((b.url, c.url), "healthy")]
            Crowd(workers.gw.port).ask(10)
            assert workers.scrape().total("prefixgate_requests_total") == 10
        finally:
            workers.gw.stop()


def tell(workers: Workers, method: str, path: str, body: Json | None = None) -> None:
    with httpx.Client(trust_env=False) as client:
        url = f"http://127.0.0.1:{workers.admin_port}/admin/v1{path}"
        client.request(method, url, json=body).raise_for_status()


def everywhere(workers: Workers, path: str) -> list[Any]:
    """What the admin API answers, over so many connections that each worker has its turn."""
    return [workers.ask(f"/admin/v1{path}").json() for _ in range(40)]


def states(workers: Workers) -> list[Json]:
    """Of the backends, by their URLs: one for each answer that differs."""
    seen = [
        {view["url"]: view["state"] for view in views} for views in everywhere(workers, "/backends")
    ]
    return [each for number, each in enumerate(seen) if each not in seen[:number]]


def ask(workers: Workers, count: int) -> None:
    crowd = Crowd(workers.gw.port)
    crowd.ask(count)
    assert len(crowd.by_worker) == COUNT


def obey(workers: Workers, a: FakeBackend, b: FakeBackend, c: FakeBackend) -> None:
    """One of two backends is drained, then removed, and another one added: by whichever worker
    answers, and all do so from then on."""
    [id] = [view["id"] for view in workers.ask("/admin/v1/backends").json() if view["url"] == a.url]
    tell(workers, "POST", f"/backends/{id}/drain")
    workers.wait_for(
        "all know it", lambda: states(workers) == [{a.url: "draining", b.url: "healthy"}]
    )
    ask(workers, 100)
    assert (len(a.requests), len(b.requests)) == (0, 100)
    tell(workers, "DELETE", f"/backends/{id}")
    tell(workers, "POST", "/backends", {"url": c.url})
    workers.wait_for(
        "all know it", lambda: states(workers) == [dict.fromkeys((b.url, c.url), "healthy")]
    )
    ask(workers, 100)
    assert a.requests == []
    # Each takes turns by itself.
    assert len(c.requests) >= 25
    tell(workers, "PATCH", "/scheduling", {"decode": {"max_waiting": 7}})
    workers.wait_for(
        "all know it",
        lambda: (
            {view["decode"]["max_waiting"] for view in everywhere(workers, "/scheduling")} == {7}
        ),
    )
    ask(workers, 100)
