from __future__ import annotations

from typing import Any

import pytest

from gateway.config import ConfigError, Settings, convert
from gateway.http.headers import Headers
from gateway.http.ingress import Ingress
from gateway.http.keys import Keys
from gateway.http.peers import Peers
from gateway.secrets import hash_key
from gateway.types import Priority

KEY = "pg-a-key-that-nobody-can-guess"
SHOWN = [(b"authorization", b"Bearer " + KEY.encode())]
PEER, ELSEWHERE = "10.1.2.3", "192.0.2.7"


def ingress(*, header: str | None = None, key: Any = None, **server: Any) -> Ingress:
    auth = None if key is None else {"name": "team", "hash": hash_key(KEY), **key}
    tree = {
        "server": server,
        "auth": {"enabled": True, "keys": [auth]} if auth else {},
        "scheduling": {"tenants": {"header": header}},
    }
    settings = convert(tree, Settings, "test")
    return Ingress(settings, Keys(settings.auth), lambda: settings.scheduling)


def scope(headers: Headers, peer: str | None = PEER) -> Any:
    pairs = [(b"host", b"gw.example"), *headers]
    return {"headers": pairs, "client": None if peer is None else (peer, 5), "scheme": "http"}


def lines(forward: bytes) -> dict[str, str]:
    pairs = (line.split(": ", 1) for line in forward.decode().split("\r\n") if line)
    return dict(pairs)


def sent(made: Ingress, headers: Headers, peer: str | None = PEER) -> dict[str, str]:
    return lines(made.admit(scope(headers, peer))[0].forward)


CAME = [
    (b"x-forwarded-for", b"1.1.1.1"),
    (b"x-forwarded-for", b"2.2.2.2"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"public.example"),
    (b"forwarded", b"for=1.1.1.1"),
    (b"x-real-ip", b"1.1.1.1"),
]


def test_forwarded_headers_of_a_stranger_are_replaced() -> None:
    found = sent(ingress(), CAME, ELSEWHERE)
    assert found == {
        "x-forwarded-for": ELSEWHERE,
        "x-forwarded-proto": "http",
        "x-forwarded-host": "gw.example",
    }


def test_those_of_a_trusted_peer_are_kept_and_added_to() -> None:
    made = ingress(trusted_proxies=["10.0.0.0/8"])
    assert sent(made, CAME) == {
        "forwarded": "for=1.1.1.1",
        "x-real-ip": "1.1.1.1",
        "x-forwarded-for": f"1.1.1.1, 2.2.2.2, {PEER}",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "public.example",
    }
    assert sent(made, CAME, ELSEWHERE)["x-forwarded-for"] == ELSEWHERE


def test_a_peer_without_an_address_is_nobodys_proxy() -> None:
    found = sent(ingress(trusted_proxies=["10.0.0.0/8"]), CAME, None)
    assert set(found) == {"x-forwarded-proto", "x-forwarded-host"}


def test_without_keys_and_peers_headers_are_believed() -> None:
    headers, identity = ingress(header="X-Team").admit(
        scope([(b"x-team", b"search"), (b"x-prefixgate-priority", b"high")])
    )
    assert identity is None
    assert (headers.tenant, headers.priority) == (b"search", b"high")
    assert lines(headers.forward)["x-team"] == "search"


def test_with_trusted_peers_only_theirs_are() -> None:
    made = ingress(header="x-team", trusted_proxies=["10.0.0.0/8"])
    claims = [(b"x-team", b"search"), (b"x-prefixgate-priority", b"high")]
    headers, _ = made.admit(scope(claims))
    assert (headers.tenant, headers.priority) == (b"search", b"high")
    headers, _ = made.admit(scope(claims, ELSEWHERE))
    assert (headers.tenant, headers.priority) == (b"", b"")
    assert "x-team" not in lines(headers.forward)


@pytest.mark.parametrize(
    ("key", "peer", "tenant"),
    [
        ({}, ELSEWHERE, "team"),
        ({"tenant": "one"}, ELSEWHERE, "one"),
        ({"tenant": "one", "names_tenants": True}, ELSEWHERE, "search"),
        ({"tenant": "one"}, PEER, "search"),
    ],
)
def test_with_keys_the_verified_tenant_replaces_the_claimed_one(
    key: Any, peer: str, tenant: str
) -> None:
    made = ingress(header="x-team", key=key, trusted_proxies=["10.0.0.0/8"])
    headers, identity = made.admit(scope([*SHOWN, (b"x-team", b"search")], peer))
    assert identity is not None
    assert identity.tenant == tenant
    assert lines(headers.forward)["x-team"] == tenant
    assert "authorization" not in lines(headers.forward)


def test_a_priority_is_at_most_what_the_key_may_have() -> None:
    _, identity = ingress(key={}).admit(scope(SHOWN))
    assert identity is not None
    capped = [identity.capped(priority) for priority in Priority]
    assert capped == [Priority.NORMAL, Priority.NORMAL, Priority.LOW]
    _, trusted = ingress(key={}, trusted_proxies=[PEER]).admit(scope(SHOWN))
    assert trusted is not None
    assert trusted.capped(Priority.HIGH) is Priority.HIGH


def test_other_settings_hold_at_once() -> None:
    made = ingress()
    made.reconfigure(convert({"server": {"trusted_proxies": [PEER]}}, Settings, "test"))
    assert sent(made, CAME)["x-forwarded-for"].endswith(PEER)
    with pytest.raises(ConfigError, match=r"server.trusted_proxies: '10.0.0.1/8'"):
        made.reconfigure(convert({"server": {"trusted_proxies": ["10.0.0.1/8"]}}, Settings, "t"))
    assert sent(made, CAME)["x-forwarded-for"].startswith("1.1.1.1")


def test_peers_are_known_in_both_families() -> None:
    peers = Peers(["10.0.0.0/8", "fd00::/8", "192.0.2.1"], "x")
    hosts = [
        "10.9.9.9",
        "::ffff:10.0.0.1",
        "fd00::1",
        "192.0.2.1",
        "11.0.0.1",
        "fe80::1",
        "",
        "unix",
    ]
    assert [host for host in hosts if host in peers] == hosts[:4]
