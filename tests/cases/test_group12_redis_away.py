"""Group 12, Z01 and Z03: Redis is of no use for a while."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median

import pytest

from tests.cases.lab import CONNECTIONS, TIMEOUT, Lab, load
from tests.cases.sharing import is_shared, known, place, until
from tests.harness.gateway_process import Metrics
from tests.harness.routes import text
from tests.harness.tcp_proxy import Way


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(stack, tmp_path_factory.mktemp("redis"))


@pytest.fixture
def lab(running: Lab) -> Lab:
    running.well()
    return running


# Z01


@contextmanager
def refused(lab: Lab) -> Iterator[None]:
    lab.redis.kill()
    yield
    lab.redis.start()


@contextmanager
def frozen(lab: Lab) -> Iterator[None]:
    lab.redis.freeze()
    yield
    lab.redis.resume()


@contextmanager
def slow(lab: Lab) -> Iterator[None]:
    lab.wire.behave(down=Way(delay=3.0))
    lab.reconnect()
    yield
    lab.wire.behave()


@contextmanager
def loading(lab: Lab) -> Iterator[None]:
    lab.redis.kill()
    with answering(lab.redis.port, b"-LOADING Redis is loading the dataset in memory\r\n"):
        yield
    lab.redis.start()


@contextmanager
def read_only(lab: Lab) -> Iterator[None]:
    lab.redis.command("REPLICAOF", "127.0.0.1", "1")
    yield
    lab.redis.command("REPLICAOF", "NO", "ONE")


@contextmanager
def out_of_memory(lab: Lab) -> Iterator[None]:
    lab.redis.command("CONFIG", "SET", "maxmemory", "1")
    yield
    lab.redis.command("CONFIG", "SET", "maxmemory", "0")


@contextmanager
def busy(lab: Lab) -> Iterator[None]:
    script = threading.Thread(
        target=lab.redis.command, args=("EVAL", "while true do end", "0"), daemon=True
    )
    script.start()
    yield
    until("the script ends", lambda: lab.redis.command("SCRIPT", "KILL") == b"+OK\r\n")
    script.join()


@contextmanager
def answering(port: int, line: bytes) -> Iterator[None]:
    """A server that says this to every command."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for each in self.rfile:
                if each.startswith(b"*"):
                    self.wfile.write(line)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def calm(running: Lab) -> float:
    """What an answer takes while all is well; seconds, the median."""
    running.well()
    return median(load(running, 0.5))


@pytest.mark.parametrize("fault", [refused, frozen, slow, loading, read_only, out_of_memory, busy])
def test_Z01_a_redis_that_is_no_use_stops_nothing(
    lab: Lab, calm: float, fault: Callable[[Lab], AbstractContextManager[None]]
) -> None:
    first, second = lab.gateways
    amid = [text(f"Z01 {fault.__name__}", 3000)]
    with fault(lab):
        took = load(lab, 0.5)
        until("it is noticed", lambda: not any(map(lab.up, lab.gateways)))
        home = place(first, amid)
        later = load(lab, 0.3)
        # One that waits for Redis takes longer than this. None does any more.
        assert median(later) < calm + TIMEOUT / 4
        assert sorted(later)[len(later) * 9 // 10] < calm + TIMEOUT
        assert sorted(took)[len(took) * 9 // 10] < calm + 2 * TIMEOUT
        for gw in lab.gateways:
            ready = gw.http.get("/ready")
            shared = ready.json()["shared"]
            assert (ready.status_code, shared["redis"]) == (200, "degraded")
            assert shared["cause"]
        assert known(second, amid) == {}  # the control: it is through Redis that it is told
        assert known(first, amid)
    back = until("it is shared again", lambda: home in known(second, amid))
    assert back < 10
    assert all(map(lab.up, lab.gateways))
    is_shared(lab, f"Z01 {fault.__name__} is over")


def test_Z01_rights_that_are_taken_away_stop_nothing(lab: Lab, calm: float) -> None:
    first, second = lab.gateways
    amid = [text("Z01 rights", 3000)]
    lab.redis.command("ACL", "SETUSER", "default", "-@all", "+acl")
    try:
        took = load(lab, 0.5)
        assert median(took) < calm + TIMEOUT / 4
        home = place(first, amid)
        for gw in lab.gateways:
            gw.settles(lambda metrics: metrics.total("prefixgate_limits_local") == 1)
            assert "does not allow" in gw.log
        assert known(second, amid) == {}
    finally:
        lab.redis.command("ACL", "SETUSER", "default", "+@all")
    until("it is shared again", lambda: home in known(second, amid))
    is_shared(lab, "Z01 rights are back")


# Z03


def test_Z03_connections_that_are_dropped_are_made_again(lab: Lab) -> None:
    first, second = lab.gateways
    turns = [text("Z03", 3000)]
    home = place(first, turns)
    until("both know it", lambda: home in known(second, turns))
    before = [gw.metrics() for gw in lab.gateways]
    for number in range(4):
        lab.reconnect()
        turns += [f"answer {number}", f"question {number}"]
        assert place(second, turns) == home
        is_shared(lab, f"Z03 {number}")
    for gw, old in zip(lab.gateways, before, strict=True):
        new = gw.metrics()

        def more(name: str, new: Metrics = new, old: Metrics = old, **labels: str) -> float:
            return new.total(name, **labels) - old.total(name, **labels)

        assert 4 <= more("prefixgate_redis_reconnects_total") <= 4 * CONNECTIONS
        assert more("prefixgate_redis_commands_total", outcome="done") > 0
        assert more("prefixgate_redis_commands_total", outcome="timeout") == 0
        assert more("prefixgate_redis_commands_total", outcome="refused") == 0
        assert new.total("prefixgate_redis_up") == 1
