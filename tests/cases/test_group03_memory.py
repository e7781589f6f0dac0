"""Group 3: memory is bounded by the configuration and flat under churn."""

from __future__ import annotations

import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.conftest import StartBackend, StartGateway
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import COMPLETIONS, Json, text

BLOCKS = 1000
"""The smallest bound that the settings allow."""
MEGABYTE = 1 << 20
# Far more than any prompt here, so that the index's own bound is what holds.
ROOMY = {"max_blocks": BLOCKS, "capacity_tokens": 10_000_000}


def completion(prompt: str, model: str = "m") -> Json:
    return {"model": model, "prompt": prompt}


def blocks(gw: GatewayProcess) -> float:
    return gw.metrics().total("prefixgate_index_blocks")


def nodes(gw: GatewayProcess) -> float:
    return gw.metrics().total("prefixgate_index_nodes")


def unique(name: str, size: int) -> str:
    """Quickly made: only its beginning must differ from all others."""
    return (name + " ").ljust(40, "-") + "x" * (size - 40)


# M01


def test_M01_the_index_is_bounded(start_backend: StartBackend, gateway: StartGateway) -> None:
    """8 kB are 36 blocks: 3,000 prompts bring 108 times the bound; the case asks for 20."""
    gw = gateway([start_backend(), start_backend()], index=ROOMY)
    favourite = completion(text("M01 favourite", 8000))
    middle = 0
    with gw.client() as client:
        for number in range(3000):
            if number % 10 == 0:
                client.exchange(COMPLETIONS.path, favourite)
            client.exchange(COMPLETIONS.path, completion(unique(f"M01 {number}", 8000)))
            if number % 100 == 99:
                assert 0 < blocks(gw) <= 1.1 * BLOCKS
            if number == 1500:
                middle = gw.rss()
    assert gw.rss() - middle < 4 * MEGABYTE
    assert gw.explain(COMPLETIONS.path, favourite).matched_tokens >= 1800
    old = completion(unique("M01 2000", 8000))
    assert gw.explain(COMPLETIONS.path, old).matched_tokens == 0


# M02


def test_M02_inner_nodes_are_reclaimed(start_backend: StartBackend, gateway: StartGateway) -> None:
    """Prompts that split each other at random places, then one that takes the whole index.

    The case's 50,000 are 15,000 here: still 15 times as many as there is room for blocks.
    """
    backend = start_backend()
    gw = gateway([backend], index=ROOMY)
    rng = random.Random(2)
    trunks = [text(f"M02 {number}", 16_000) for number in range(20)]
    start = 0
    with gw.client() as client:
        for number in range(15_000):
            shared = rng.choice(trunks)[: rng.randrange(0, 12_000)]
            prompt = shared + unique(f"M02 {number}", rng.randrange(200, 4000))
            client.exchange(COMPLETIONS.path, completion(prompt))
            if number == 3000:
                start = gw.rss()
        assert nodes(gw) > 20
        # 64 blocks cover the first 22.5 kB, each further one a kilobyte
        client.exchange(COMPLETIONS.path, completion(unique("M02 last", BLOCKS * 1024)))
    assert blocks(gw) <= 1.1 * BLOCKS
    assert nodes(gw) <= 3
    assert gw.rss() <= 1.2 * start
    gw.admin("POST", "/index/flush", {})
    assert blocks(gw) == 0
    assert nodes(gw) <= 1


# M04


def test_M04_removing_a_backend_removes_its_entries(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Each round's backend has an id of its own, as a new pod has. 80 rounds in place of 200."""
    stays = start_backend("m")
    comes = start_backend("churn")
    gw = gateway([stays])
    gw.post(COMPLETIONS.path, completion(text("M04 stays", 8000)))
    base = blocks(gw)
    assert base > 0
    series = rss = 0
    with gw.client() as client:
        for number in range(80):
            entry = {"url": f"{comes.url}/pod-{number}", "models": ["churn"]}
            added = gw.admin("POST", "/backends", entry)
            gw.settles(lambda _: "churn" in served(gw))
            for prompt in range(50):
                body = completion(unique(f"M04 {number} {prompt}", 4000), "churn")
                assert client.exchange(COMPLETIONS.path, body).status == 200
            assert blocks(gw) > base
            gw.admin("DELETE", f"/backends/{added['id']}")
            gw.settles(lambda metrics: metrics.total("prefixgate_index_blocks") == base)
            if number == 20:
                series, rss = gw.metrics().series, gw.rss()
    assert len(comes.requests) == 80 * 50
    assert gw.rss() - rss < 8 * MEGABYTE
    # what is remembered of a backend for the metrics page must go as well
    assert gw.metrics().series <= series
    assert "churn" not in served(gw)


def served(gw: GatewayProcess) -> list[str]:
    return [entry["id"] for entry in gw.http.get("/v1/models").json()["data"]]


# M05


def test_M05_the_bound_holds_during_a_burst(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """64 kB are 104 blocks: 400 prompts are 40 times the bound, from eight clients at once."""
    gw = gateway([start_backend(), start_backend()], index=ROOMY)

    def send(worker: int) -> None:
        with gw.client() as client:
            for number in range(50):
                prompt = unique(f"M05 {worker} {number}", 64_000)
                assert client.exchange(COMPLETIONS.path, completion(prompt)).status == 200

    seen: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.is_set():
            seen.append(blocks(gw))

    with ThreadPoolExecutor(9) as pool:
        sampler = pool.submit(sample)
        for job in [pool.submit(send, worker) for worker in range(8)]:
            job.result()
        over.set()
        sampler.result()
    assert len(seen) > 5
    assert max(seen) <= 1.1 * BLOCKS
    assert max(seen) > 0.5 * BLOCKS


# M07


def test_M07_abnormal_closes_pin_nothing(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """20,000 requests of 1 kB: if each stayed for the keep-alive time, 100 MB would be gone."""
    gw = gateway([start_backend()], server={"keep_alive": 600.0})
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 1000)
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    warm = 0
    for number in range(20_000):
        answered_then_reset(gw.port, request)
        if number == 2000:
            warm = gw.rss()
    assert gw.rss() - warm < 30 * MEGABYTE
    assert gw.settles_idle().outcomes == {"ok": 20_000}


def answered_then_reset(port: int, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        answer = connection.recv(1 << 16)
        while not answer.endswith(b"}"):
            answer += connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200")
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def test_M07_nor_do_resets_in_the_middle(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    backend.behave(itl=0.005, n_tokens=1000)
    gw = gateway([backend], server={"keep_alive": 600.0})
    body = {**completion("x" * 50_000), "stream": True}
    warm = 0
    for number in range(1500):
        client = RawClient(gw.port)
        client.request(COMPLETIONS.path, body)
        client.events(1)
        client.reset()
        if number == 300:
            warm = gw.rss()
    assert gw.rss() - warm < 15 * MEGABYTE
    assert gw.settles_idle().outcomes == {"cancelled": 1500}
