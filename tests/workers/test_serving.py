"""Four workers behind one port: one gateway to whoever asks, also while some of them die."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from loadtests.redis.server import RedisServer
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import Metrics
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT
from tests.workers.gateway import Crowd, Workers, alive

COUNT = 4
GROWING = ("_total", "_count", "_sum", "_bucket")


@pytest.fixture(scope="module")
def running(
    shared_backend: FakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    directory = tmp_path_factory.mktemp("workers")
    with RedisServer() as redis:
        settings = {
            "backends": [{"url": shared_backend.url}],
            "redis": {"url": redis.url},
            "log": {"access": str(directory / "access.jsonl")},
        }
        workers = Workers(COUNT, settings, directory)
        try:
            yield workers
        finally:
            workers.gw.stop()


@pytest.fixture
def workers(running: Workers, backend: FakeBackend) -> Workers:
    running.wait_for("all serve", lambda: running.states() == {"serving": COUNT})
    return running


@pytest.fixture
def streams(workers: Workers, backend: FakeBackend) -> Iterator[list[RawClient]]:
    """Twelve clients in the middle of their answers, at several workers."""
    backend.behave(itl=0.05, n_tokens=10_000)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(workers.gw.port)) for _ in range(12)]
        for client in clients:
            client.request(CHAT.path, CHAT.stream())
        for client in clients:
            assert client.events(1).status == 200
        yield clients
    workers.wait_for("idle", lambda: workers.scrape().total("prefixgate_in_flight") == 0)


def fallen(before: Metrics, after: Metrics) -> list[str]:
    """Series that must grow and have not."""
    now = after.values()
    return [
        f"{name}{labels}: {value} to {now.get((name, labels))}"
        for (name, labels), value in before.values().items()
        if name.endswith(GROWING) and now.get((name, labels), 0.0) < value
    ]


def test_x04_one_truth_while_requests_come_and_a_worker_dies(
    workers: Workers, backend: FakeBackend
) -> None:
    scrapes = [workers.scrape()]
    before = scrapes[0].total("prefixgate_requests_total")
    crowd = Crowd(workers.gw.port)
    load = threading.Thread(target=crowd.ask, args=(1000,))
    load.start()
    while load.is_alive() or len(scrapes) < 21:
        scrapes.append(workers.scrape())
        time.sleep(0.05)
    load.join()
    assert [fell for pair in pairwise(scrapes) if (fell := fallen(*pair))] == []
    workers.wait_for(
        "all are counted",
        lambda: workers.scrape().total("prefixgate_requests_total") == before + 1000,
    )
    scrapes.append(workers.scrape())
    assert scrapes[-1].total("prefixgate_request_seconds_count") == before + 1000
    # What one process alone would have said.
    assert len(crowd.by_worker) == COUNT
    assert max(crowd.by_worker.values()) < 400

    workers.kill(1)
    workers.wait_for("one less", lambda: workers.states().get("serving") == COUNT - 1)
    after = workers.scrape()
    assert fallen(scrapes[-1], after) == []
    assert after.total("prefixgate_requests_total") == before + 1000
    workers.wait_for("it is back", lambda: workers.states() == {"serving": COUNT})
    assert fallen(after, workers.scrape()) == []


def test_c04_ids_are_distinct(workers: Workers, backend: FakeBackend) -> None:
    crowd = Crowd(workers.gw.port)
    crowd.ask(200)
    sent = [
        value
        for each in backend.requests
        for name, value in each.headers
        if name == b"x-request-id"
    ]
    assert len(set(sent)) == len(sent) == 200
    assert len(crowd.by_worker) == COUNT


def test_every_worker_knows_what_another_has_sent(workers: Workers, backend: FakeBackend) -> None:
    Crowd(workers.gw.port).ask(1)
    [via] = [value for name, value in backend.requests[0].headers if name == b"via"]
    statuses = set()
    for _ in range(20):
        with RawClient(workers.gw.port) as client:
            headers = [("via", via.decode())]
            client.request(CHAT.path, CHAT.body(["hello"]), headers=headers)
            statuses.add(client.answer().status)
    assert statuses == {508}


def test_a_killed_worker_costs_its_own_answers_only(
    workers: Workers, backend: FakeBackend, streams: list[RawClient]
) -> None:
    assert workers.scrape().total("prefixgate_in_flight") == len(streams)
    backend.behave()
    crowd = Crowd(workers.gw.port)
    load = threading.Thread(target=crowd.ask, args=(400,))
    load.start()
    backend.wait_requests(len(streams) + 50)
    pid = workers.kill(2)
    load.join()
    assert not alive(pid)
    assert crowd.refused == 0
    assert len(crowd.ids) == 400
    assert crowd.broken <= 8  # those under way there
    # What it had in flight is no longer counted, what the others have is.
    sent = [each for each in backend.requests if each.json.get("stream")]
    backend.wait(lambda: any(each.abandoned for each in sent))
    workers.wait_for(
        "as many as the backend knows of",
        lambda: (
            workers.scrape().total("prefixgate_in_flight")
            == sum(not each.abandoned for each in sent)
            > 0
        ),
    )


def test_the_admin_api_answers_for_all(workers: Workers, streams: list[RawClient]) -> None:
    seen = [workers.ask("/admin/v1/requests").json() for _ in range(10)]
    ids = {view["id"] for view in seen[0]}
    assert len(ids) == len(streams)
    assert len({id.partition("-")[0] for id in ids}) > 1
    assert all({view["id"] for view in each} == ids for each in seen)
    granted = {
        sum(pool["queues"]["decode"]["granted"] for pool in workers.ask("/admin/v1/queues").json())
        for _ in range(10)
    }
    assert len(granted) == 1
    assert granted.pop() >= len(streams)


def change_policy(workers: Workers, name: str) -> None:
    settings = yaml.safe_load(workers.gw.config_path.read_text())
    settings["policy"] = {"name": name}
    workers.gw.config_path.write_text(yaml.safe_dump(settings))


def reloads(workers: Workers) -> float:
    return workers.scrape().total("prefixgate_config_reloads_total", result="applied")


def test_a_reload_is_one_of_all_workers(workers: Workers) -> None:
    before = reloads(workers)
    change_policy(workers, "round_robin")
    answer = workers.ask("/admin/v1/config/reload", "POST").json()
    assert answer["changed"] == ["policy"]
    assert reloads(workers) == before + COUNT  # as soon as it is answered
    shown = workers.scrape().by("prefixgate_policy_info", "policy")
    assert shown == {"round_robin": 1}


def test_sighup_reaches_all_workers(workers: Workers, backend: FakeBackend) -> None:
    path = Path(yaml.safe_load(workers.gw.config_path.read_text())["log"]["access"])
    Crowd(workers.gw.port).ask(50)
    old = path.with_suffix(".1")
    path.rename(old)
    before = reloads(workers)
    change_policy(workers, "least_load")
    workers.gw.signal(signal.SIGHUP)
    workers.wait_for("all have reloaded", lambda: reloads(workers) == before + COUNT)
    crowd = Crowd(workers.gw.port)
    crowd.ask(100)
    asked = set(crowd.ids)

    def written() -> set[str]:
        return {json.loads(line)["id"] for line in path.read_bytes().splitlines()}

    workers.wait_for("all is in the new file", lambda: path.exists() and asked <= written())
    assert not asked & {json.loads(line)["id"] for line in old.read_bytes().splitlines()}


def test_a_frozen_worker_counts_as_it_last_was(workers: Workers, backend: FakeBackend) -> None:
    Crowd(workers.gw.port).ask(40)
    before = workers.scrape()
    workers.kill(3, signal.SIGSTOP)
    try:
        asked = time.monotonic()
        after = workers.scrape()
        assert time.monotonic() - asked < 10
        assert after.by("prefixgate_workers", "state") == {"serving": COUNT - 1, "silent": 1}
        assert fallen(before, after) == []
        assert workers.ask("/admin/v1/requests").json() == []
    finally:
        workers.kill(3, signal.SIGCONT)
    workers.wait_for("it is heard again", lambda: workers.states() == {"serving": COUNT})


def test_others_stand_in_for_one_that_cannot_come_back(
    workers: Workers, backend: FakeBackend
) -> None:
    config = workers.gw.config_path
    right = config.read_text()
    config.write_text("server: {port: many}")
    workers.kill(4)
    try:
        workers.wait_for(
            "it tried and failed",
            lambda: "worker 4 ended with 2; it is started in 0.5 s" in workers.gw.log,
        )
        assert workers.states() == {"serving": COUNT - 1, "starting": 1}
        crowd = Crowd(workers.gw.port)
        crowd.ask(100)
        assert len(crowd.ids) == 100
        assert crowd.broken == 0
        assert len(crowd.by_worker) == COUNT - 1
    finally:
        config.write_text(right)
    workers.wait_for("it is back", lambda: workers.states() == {"serving": COUNT})
    crowd = Crowd(workers.gw.port)
    crowd.ask(100)
    assert len(crowd.by_worker) == COUNT
