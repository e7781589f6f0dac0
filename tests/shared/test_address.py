from __future__ import annotations

import pytest

from gateway.config import ConfigError
from gateway.shared.address import Address, Place, place_of


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://r", Place((Address("r", 6379),))),
        ("redis://R.Test:1/", Place((Address("r.test", 1),))),
        ("redis://[::1]:1/3", Place((Address("::1", 1),), 3)),
        ("redis://r?db=3", Place((Address("r", 6379),), 3)),
        ("rediss://r:1", Place((Address("r", 1),), tls=True)),
        ("redis://a:1,b,c:3/2", Place((Address("a", 1), Address("b", 6379), Address("c", 3)), 2)),
        ("redis://u:p%40%2F@r", Place((Address("r", 6379),), username="u", password="p@/")),
        ("redis://:p@r", Place((Address("r", 6379),), password="p")),
        ("redis://u@r", Place((Address("r", 6379),), username="u")),
        ("unix:///run/redis.sock?db=1", Place((Address("/run/redis.sock", None),), 1)),
        ("unix://:p@/r.sock", Place((Address("/r.sock", None),), password="p")),
    ],
)
def test_a_url_says_where_redis_is(url: str, place: Place) -> None:
    assert place_of(url, sentinels=False) == place


def test_sentinels_have_a_port_of_their_own() -> None:
    place = place_of("redis://a,b:1", sentinels=True)
    assert place.addresses == (Address("a", 26379), Address("b", 1))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://r", "scheme 'http', expected redis://, rediss:// or unix://"),
        ("redis+tls://r", "scheme 'redis+tls', expected redis://"),
        ("r:6379", "begins with no scheme, expected redis://, rediss:// or unix://"),
        ("redis://", "server '', expected HOST or HOST:PORT"),
        ("redis://a,,b", "server '', expected HOST or HOST:PORT"),
        ("redis://r:0", "server 'r:0', expected HOST or HOST:PORT"),
        ("redis://r:65536", "server 'r:65536', expected HOST or HOST:PORT"),
        ("redis://r:x", "server 'r:x', expected HOST or HOST:PORT"),
        ("redis://r/x", "database 'x', expected a number"),
        ("redis://r/1?db=2", "names a database twice"),
        ("redis://r?socket_timeout=1", "'socket_timeout' after the '?', expected db"),
        ("redis://r?ssl_cert_reqs", "'ssl_cert_reqs' after the '?', expected db"),
        ("redis://r#x", "'#x' has no meaning here"),
        ("unix://run/redis.sock", "expected unix:///PATH"),
        ("unix://", "expected unix:///PATH"),
    ],
)
def test_what_a_url_cannot_say_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^redis\.url: ") as error:
        place_of(url, sentinels=False)
    assert message in str(error.value)


@pytest.mark.parametrize("mark", "/?#[]\u2100")
def test_no_message_has_the_password(mark: str) -> None:
    with pytest.raises(ConfigError) as error:
        place_of(f"redis://user:hun{mark}ter2@r:x", sentinels=False)
    for part in ("hun", "ter2"):
        assert part not in str(error.value)
    assert "hunter2" not in repr(place_of("redis://user:hunter2@r", sentinels=False))


@pytest.mark.parametrize("url", ["user:hunter2@r", ":hunter2://r", "user:hunter2@redis://r"])
def test_a_scheme_that_is_none_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="expected redis://") as error:
        place_of(url, sentinels=False)
    assert "hunter2" not in str(error.value)
