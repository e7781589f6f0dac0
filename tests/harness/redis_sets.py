"""Real Redis servers that know of each other, for the tests that need them."""

from loadtests.redis.sets import SLOTS, RedisCluster, RedisSentinels, cluster_port, until

__all__ = ["SLOTS", "RedisCluster", "RedisSentinels", "cluster_port", "until"]
