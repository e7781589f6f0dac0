"""Group 13 and A07, their part about API keys and stored responses: two gateways and a Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.secrets import hash_key
from loadtests.redis.server import RedisServer
from tests.cases.test_group17_stored import Keeper, made, owner_of
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import CHAT, RESPONSES, Json, text

BODY = CHAT.body(["hello"])
LIMITS: dict[str, Json] = {
    "requests": {"requests_per_minute": 10},
    "cut": {"requests_per_minute": 10},
    "away": {"requests_per_minute": 10},
    "one": {},
    "two": {},
}
KEYS = {name: {"x-api-key": f"pg-the-key-of-{name}-0123456789"} for name in LIMITS}
AUTH = {
    "enabled": True,
    "open_metrics": True,
    "keys": [
        {"name": name, "hash": hash_key(KEYS[name]["x-api-key"]), "limits": limits}
        for name, limits in LIMITS.items()
    ],
}


class Site:
    """Attributes:
    gateways: two that share a Redis, and one that has it for itself.
    """

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.redis = stack.enter_context(RedisServer())
        self.keepers = [Keeper(stack.enter_context(FakeBackend("m")), name) for name in "ab"]
        self.gateways = [
            stack.enter_context(GatewayProcess(self._settings(namespace), directory))
            for namespace in ("one", "one", "other")
        ]

    def _settings(self, namespace: str) -> Json:
        return {
            "backends": [{"url": keeper.backend.url} for keeper in self.keepers],
            "policy": {"name": "round_robin"},
            "auth": AUTH,
            # Long, so that a slow machine does not look like a slow Redis.
            "redis": {"url": self.redis.url, "namespace": namespace, "timeout": 2.0},
        }

    def statuses(self, gateways: list[GatewayProcess], key: str, each: int = 20) -> Counter[int]:
        """Of as many requests at each gateway, all at once."""
        with ThreadPoolExecutor(2 * each) as pool:
            return Counter(
                pool.map(
                    lambda gw: gw.http.post(CHAT.path, json=BODY, headers=KEYS[key]).status_code,
                    gateways * each,
                )
            )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path_factory.mktemp("shared"))


def test_a_limit_holds_over_both(site: Site) -> None:
    first, second, apart = site.gateways
    assert site.statuses([first, second], "requests") == {200: 10, 429: 30}
    answer = second.http.post(CHAT.path, json=BODY, headers=KEYS["requests"])
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert site.statuses([first, apart], "cut") == {200: 20, 429: 20}
    assert first.metrics().total("prefixgate_limits_local") == 0


@pytest.mark.parametrize("streamed", [True, False])
def test_A07_a_chain_stays_with_its_owner_through_two_gateways(site: Site, streamed: bool) -> None:
    lost = 0
    for other, number in ((1, 1), (1, 2), (2, 3), (2, 4), (2, 5), (2, 6)):
        previous: str | None = None
        owners = []
        for turn in range(5):
            gw = site.gateways[0 if turn % 2 == 0 else other]
            body = RESPONSES.body([text(f"A07 {number} {turn} {streamed}", 200)])
            body["stream"] = streamed
            if previous is not None:
                body["previous_response_id"] = previous
            with gw.client() as client:
                answer = client.exchange(RESPONSES.path, body, headers=list(KEYS["one"].items()))
            if answer.status == 404:
                assert other == 2  # the one that is told nothing
                lost += 1
                break
            previous = made(answer, streamed)
            owners.append(owner_of(previous, site.keepers))
            url = f"/v1/responses/{previous}"
            if other == 1:
                known = site.gateways[1].http.get(url, headers=KEYS["one"])
                assert known.status_code == 200
        assert len(set(owners)) == 1
    assert lost > 0


def test_a_response_is_unknown_to_other_tenants_at_every_gateway(site: Site) -> None:
    first, second, _ = site.gateways
    body = RESPONSES.body([text("tenants", 200)])
    id = first.http.post(RESPONSES.path, json=body, headers=KEYS["one"]).json()["id"]
    follow_up = body | {"previous_response_id": id}
    for gw in (first, second):
        for answer in (
            gw.http.get(f"/v1/responses/{id}", headers=KEYS["two"]),
            gw.http.delete(f"/v1/responses/{id}", headers=KEYS["two"]),
            gw.http.post(RESPONSES.path, json=follow_up, headers=KEYS["two"]),
        ):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "response_not_found"
        assert gw.http.get(f"/v1/responses/{id}", headers=KEYS["one"]).status_code == 200


def test_Z04_without_redis_each_has_its_share(site: Site) -> None:
    """The last one: the Redis is gone."""
    both = site.gateways[:2]
    for gw in both:
        gw.settles(lambda metrics: metrics.total("prefixgate_limits_replicas") == 2)
    site.redis.kill()
    for gw in both:
        gw.settles(lambda metrics: metrics.total("prefixgate_limits_local") == 1)
        assert gw.metrics().total("prefixgate_limits_replicas") == 2
    assert site.statuses(both, "away") == {200: 10, 429: 30}
