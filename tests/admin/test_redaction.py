from __future__ import annotations

from gateway.admin.redaction import REDACTED, redacted


def test_secrets_are_starred_wherever_they_are() -> None:
    tree = {
        "admin": {"token": "a"},
        "backends": [{"api_key": "b", "url": "u"}],
        "redis": {"password": "c", "tls": {"client_secret": {"inner": "d"}}, "API_KEYS": ["e"]},
    }
    assert redacted(tree) == {
        "admin": {"token": REDACTED},
        "backends": [{"api_key": REDACTED, "url": "u"}],
        "redis": {"password": REDACTED, "tls": {"client_secret": REDACTED}, "API_KEYS": REDACTED},
    }


def test_the_login_in_a_url_is_starred() -> None:
    shown = {"url": f"redis://{REDACTED}@a:1,b:2/3"}
    for login in ("user:pass", ":pass", "us@er:p@ss"):
        assert redacted({"url": f"redis://{login}@a:1,b:2/3"}) == shown
    for url in ("redis://a:1", "http://a/x@y", "a@b", "unix:///a@b"):
        assert redacted({"url": url}) == {"url": url}


def test_sections_are_shown_without_the_secrets_in_them() -> None:
    key = {"name": "team", "hash": "sha256:1", "key": {"env": "A"}, "models": ("m",)}
    shown = {"name": "team", "hash": REDACTED, "key": REDACTED, "models": ["m"]}
    for entries in ([key], (key,)):
        assert redacted({"auth": {"keys": entries}}) == {"auth": {"keys": [shown]}}
    assert redacted({"keys": ["a", "b"]}) == {"keys": REDACTED}


def test_what_is_no_secret_stays() -> None:
    tree = {"token": None, "capacity_tokens": 5, "max_uncached_tokens": [1], "key_bytes": 2}
    assert redacted(tree) == tree
