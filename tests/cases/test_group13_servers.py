"""Group 13, C01, and K18: through Sentinels, a cluster, and a restart of all gateways."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from loadtests.redis.server import RedisServer
from loadtests.redis.sets import RedisCluster, RedisSentinels
from tests.cases.sharing import Group, is_shared, known, knows, place, would_send
from tests.harness.routes import text

TIMEOUT = 2.0
"""Of a command, seconds: a busy machine is no slow Redis."""


def test_C01_through_sentinels_and_a_failover(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(RedisSentinels())
        redis = {
            "url": servers.url,
            "sentinel_service": RedisSentinels.SERVICE,
            "timeout": TIMEOUT,
        }
        group = Group(stack, tmp_path, redis)
        is_shared(group, "C01 sentinels")
        old = servers.primary
        old.kill()
        # The control: nothing comes from one to the other but through the primary.
        turns = [text("C01 nobody is the primary", 3000)]
        home = place(group.gateways[0], turns)
        assert known(group.gateways[1], turns) == {}
        knows(group.gateways, turns, home)
        assert servers.primary is not old
        is_shared(group, "C01 failed over")


def test_C01_through_a_cluster_and_a_moved_slot(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(RedisCluster())
        group = Group(stack, tmp_path, {"url": cluster.url, "timeout": TIMEOUT})
        is_shared(group, "C01 cluster")
        key = b"{prefixgate:one}:feed"
        to = next(node for node in cluster.nodes if node is not cluster.owner(key))
        owner = cluster.begin_move(key, to)
        place(group.gateways[0], [text("C01 amid", 3000)])
        cluster.end_move(key, owner, to)
        is_shared(group, "C01 moved")
        owner.kill()
        is_shared(group, "C01 the old owner is gone")


def test_K18_hashes_agree_between_processes_and_restarts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        seeds = [{"PYTHONHASHSEED": seed} for seed in ("1", "2")]
        group = Group(stack, tmp_path, {"url": redis.url, "timeout": TIMEOUT}, environments=seeds)
        first, second = group.gateways
        homes = {}
        for number in range(9):
            turns = [text(f"K18 {number}", 3000)]
            home = place(first, turns)
            would_send([second], [*turns, "a", "1"], home)
            assert place(second, [*turns, "a", "1"]) == home
            homes[number] = home, known(first, turns)[home]
        assert len({home for home, _ in homes.values()}) == 3
        for gw in group.gateways:
            gw.stop()
        again = [group.start(environment={"PYTHONHASHSEED": seed}) for seed in ("3", "random")]
        apart = 0
        for number, (home, blocks) in homes.items():
            turns = [text(f"K18 {number}", 3000)]
            for gw in again:
                assert known(gw, turns)[home] == blocks  # at once: it was not ready before
                would_send([gw], [*turns, "b", "2"], home)
                assert place(gw, [*turns, "b", "2"]) == home
            apart += place(group.cut, [*turns, "b", "2"]) != home
        assert apart > 0
