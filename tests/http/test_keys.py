from __future__ import annotations

import pytest

from gateway.config import ApiKey, Auth, ConfigError, KeyLimits, SecretRef, convert
from gateway.http.headers import Headers
from gateway.http.keys import AuthFailure, Keys, Unauthenticated
from gateway.secrets import hash_key

ONE, TWO = "pg-the-first-of-two-keys", "pg-the-second-of-two-keys"


def keys(*entries: ApiKey) -> Keys:
    return Keys(Auth(enabled=True, keys=entries))


def entry(key: str, name: str, **options: object) -> ApiKey:
    return convert({"name": name, "hash": hash_key(key), **options}, ApiKey, "test")


@pytest.mark.parametrize(
    "shown",
    [
        [(b"authorization", b"Bearer " + ONE.encode())],
        [(b"authorization", b"bearer  " + ONE.encode() + b" ")],
        [(b"x-api-key", ONE.encode())],
        [(b"api-key", ONE.encode())],
        # An SDK that sends two of them, and only one is meant for us.
        [(b"authorization", b"Bearer other"), (b"x-api-key", ONE.encode())],
    ],
)
def test_a_key_is_found_however_it_is_sent(shown: Headers) -> None:
    assert keys(entry(ONE, "one"), entry(TWO, "two")).find(shown).name == "one"


@pytest.mark.parametrize(
    ("shown", "failure"),
    [
        ([], AuthFailure.MISSING),
        ([(b"cookie", ONE.encode())], AuthFailure.MISSING),
        ([(b"authorization", b"Bearer nobody")], AuthFailure.UNKNOWN),
        ([(b"authorization", b"Basic " + ONE.encode())], AuthFailure.UNKNOWN),
        ([(b"authorization", ONE.encode())], AuthFailure.UNKNOWN),
        ([(b"x-api-key", b"")], AuthFailure.UNKNOWN),
        ([(b"x-api-key", hash_key(ONE).encode())], AuthFailure.UNKNOWN),
    ],
)
def test_nothing_else_is_one(shown: Headers, failure: AuthFailure) -> None:
    found = keys(entry(ONE, "one"))
    with pytest.raises(Unauthenticated):
        found.find(shown)
    assert found.failures[failure] == 1


def test_models_are_those_that_are_named() -> None:
    some = keys(entry(ONE, "one", models=["llama-*", "m[1]"])).find([(b"x-api-key", ONE.encode())])
    allowed = ["llama-3", "llama-", "m[1]"]
    assert [m for m in [*allowed, "m1", "xllama-3", "LLAMA-3", ""] if some.allows(m)] == allowed
    none = keys(entry(ONE, "one", models=[])).find([(b"x-api-key", ONE.encode())])
    assert [none.allows(model) for model in ("m", "")] == [False, False]
    every = keys(entry(ONE, "one")).find([(b"x-api-key", ONE.encode())])
    assert every.allows("m")
    assert every.allows("")


def test_other_settings_leave_what_was_used() -> None:
    found = keys(entry(ONE, "one"), entry(TWO, "two"))
    found.find([(b"x-api-key", ONE.encode())]).use.enter(0.0)
    # The key is changed, its limits too, and the other one goes.
    renewed = entry("pg-another-key-altogether", "one", limits={"max_concurrent": 1})
    found.reconfigure(Auth(enabled=True, keys=(renewed,)))
    [key] = found
    assert (key.use.concurrent, key.use.limits) == (1, KeyLimits(max_concurrent=1))
    with pytest.raises(Unauthenticated):
        found.find([(b"x-api-key", ONE.encode())])


def test_a_key_that_is_there_twice_or_cannot_be_read_changes_nothing() -> None:
    found = keys(entry(ONE, "one"))
    with pytest.raises(ConfigError, match=r"auth.keys\[1\]: 'two' is the same key as 'one'"):
        found.reconfigure(Auth(enabled=True, keys=(entry(ONE, "one"), entry(ONE, "two"))))
    missing = ApiKey(name="one", key=SecretRef(env="PREFIXGATE_NO_SUCH_KEY"))
    with pytest.raises(ConfigError, match=r"auth.keys\[0\].key: .*PREFIXGATE_NO_SUCH_KEY"):
        found.reconfigure(Auth(enabled=True, keys=(missing,)))
    assert found.find([(b"x-api-key", ONE.encode())]).name == "one"


@pytest.mark.parametrize(
    ("auth", "says"),
    [
        ({"keys": [{"name": "a", "hash": hash_key(ONE)}]}, "enabled is false"),
        ({"enabled": True, "keys": [{"name": "a"}]}, "exactly one of hash and key"),
        (
            {"enabled": True, "keys": [{"name": "a", "key": ONE}]},
            r"keys\[0\].key: Expected `object \| null`",
        ),
        ({"enabled": True, "keys": [{"name": "a", "hash": ONE}]}, r"hash: .*sha256"),
        ({"enabled": True, "keys": [{"name": "a b", "hash": hash_key(ONE)}]}, "name"),
        (
            {"enabled": True, "keys": [{"name": "a", "hash": hash_key(k)} for k in (ONE, TWO)]},
            "'a' is given twice",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(auth: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        convert(auth, Auth, "auth")
    assert ONE not in str(caught.value)
