"""A real Redis for the tests that need one."""

from loadtests.redis.server import RedisServer, has_tls, redis_binary

__all__ = ["RedisServer", "has_tls", "redis_binary"]
