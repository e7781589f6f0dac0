"""Two gateways with a Redis that can be made to fail, and one gateway that hears nobody."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from redis import Redis

from gateway.secrets import hash_key
from loadtests.redis.server import RedisServer
from tests.cases.sharing import Group, until
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, text
from tests.harness.tcp_proxy import TcpProxy

TIMEOUT = 0.25
"""What a request waits for Redis at most; long, so that a busy machine is no slow Redis."""
LEASE = 1.5
CONNECTIONS = 3
"""To Redis, of each gateway: two for commands and one that waits for what the others say."""
KEY = {"x-api-key": "pg-a-key-that-has-limits-0123456789"}
"""What requests with it may do is asked of Redis each time."""
AUTH = {
    "enabled": True,
    "open_metrics": True,
    "keys": [
        {
            "name": "limited",
            "hash": hash_key(KEY["x-api-key"]),
            "limits": {"requests_per_minute": 1_000_000, "max_concurrent": 1000},
        }
    ],
}


class Lab(Group):
    """Attributes:
    redis: it is reached through `wire`.
    """

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.redis = stack.enter_context(RedisServer(lua_time_limit=50))
        self.wire = stack.enter_context(TcpProxy(self.redis.port))
        redis = {"url": f"redis://127.0.0.1:{self.wire.port}", "timeout": TIMEOUT}
        replication = {"lease": LEASE, "snapshot_interval": 0.5}
        super().__init__(stack, directory, redis, auth=AUTH, replication=replication)
        for gw in self.all:
            gw.http.headers.update(KEY)

    def reconnect(self) -> None:
        """Break all connections to Redis: what the wire does holds for new ones."""
        for kind in ("normal", "replica"):
            self.redis.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def connection(self) -> Redis:
        """To look at what is in Redis."""
        return Redis(port=self.redis.port)

    def key(self, part: str) -> bytes:
        """The full name of a key that the gateways share."""
        return f"{{prefixgate:one}}:{part}".encode()

    def expiries(self) -> dict[bytes, int]:
        """Seconds that keys are kept, by name; -1 for ever."""
        with self.connection() as redis:
            return {name: redis.ttl(name) for name in redis.scan_iter(self.key("*"))}

    def count(self, key: bytes, others: set[bytes]) -> int:
        """Fields of a hash, but for these."""
        with self.connection() as redis:
            return len(set(redis.hkeys(key)) - others)

    def names(self, id: str) -> set[bytes]:
        """Keys in whose names or values something is mentioned."""
        with self.connection() as redis:
            return {name for name in self.expiries() if id in f"{name!r}{content(redis, name)}"}

    def well(self) -> None:
        """Begin anew, with backends that have seen nothing."""
        for backend in self.backends:
            backend.reset()
        until("Redis is up", lambda: all(map(self.up, self.all)))

    def up(self, gw: GatewayProcess) -> bool:
        return gw.metrics().total("prefixgate_redis_up") == 1


def load(lab: Lab, seconds: float) -> list[float]:
    """A hundred requests per second, all new, through both gateways.

    Returns:
        Seconds until each was answered, and answered well.
    """
    name = f"load {time.monotonic()}"

    def ask(number: int) -> list[float]:
        gw, took = lab.gateways[number % 2], []
        with RawClient(gw.port, headers=KEY.items()) as client:
            ends = time.monotonic() + seconds
            while (began := time.monotonic()) < ends:
                body = CHAT.body([text(f"{name} {number} {len(took)}", 600)])
                assert client.exchange(CHAT.path, body).status == 200
                took.append(time.monotonic() - began)
                time.sleep(max(0.0, began + 0.04 - time.monotonic()))
        return took

    with ThreadPoolExecutor(4) as pool:
        return [each for took in pool.map(ask, range(4)) for each in took]


def content(redis: Redis, name: bytes) -> object:
    """Of a key of any type."""
    match redis.type(name):
        case b"hash":
            return redis.hgetall(name)
        case b"stream":
            return redis.xrange(name)
        case b"zset":
            return redis.zrange(name, 0, -1)
        case _:
            return redis.get(name)
