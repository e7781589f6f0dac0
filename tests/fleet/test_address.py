from __future__ import annotations

import pytest

from gateway.config import ConfigError
from gateway.fleet.address import Address


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://gpu1:8000", "http://gpu1:8000"),
        ("http://gpu1:8000/", "http://gpu1:8000"),
        ("HTTP://GPU1.Example.COM:8000", "http://gpu1.example.com:8000"),
        ("http://gpu1", "http://gpu1"),
        ("http://gpu1:80", "http://gpu1"),
        ("https://gpu1:443/", "https://gpu1"),
        ("https://gpu1:80", "https://gpu1:80"),
        ("http://gpu1:9001/poc-1", "http://gpu1:9001/poc-1"),
        ("http://gpu1:9001/poc-1//", "http://gpu1:9001/poc-1"),
        ("http://gpu1:9001/Case/Kept", "http://gpu1:9001/Case/Kept"),
        ("http://[::1]:9001", "http://[::1]:9001"),
        ("http://[2001:DB8:0:0::1]", "http://[2001:db8::1]"),
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("http://my_service:8000", "http://my_service:8000"),
        ("  http://gpu1:8000\n", "http://gpu1:8000"),
    ],
)
def test_one_spelling(text: str, url: str) -> None:
    address = Address.parse(text)
    assert address.url == url
    assert Address.parse(url) == address


def test_parts() -> None:
    address = Address.parse("https://[FE80::1]:9001/base/")
    assert (address.scheme, address.host, address.port) == ("https", "fe80::1", 9001)
    assert (address.base_path, address.authority) == ("/base", "[fe80::1]:9001")
    assert Address.parse("http://h").authority == "h"
    assert Address.parse("http://h").port == 80
    assert Address.parse("https://h").port == 443


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host:9001", "must start with http:// or https://"),
        ("localhost", "must start with"),
        ("ftp://host", "must start with"),
        ("http:host", "must start with"),
        ("", "must start with"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://host:0", "1 to 65535"),
        ("http://host:65536", "1 to 65535"),
        ("http://host:80a", "1 to 65535"),
        ("http://host:", "no port"),
        ("http://host:9001@2", "'@'"),
        ("http://host/?x=1", "query"),
        ("http://host/?", "query"),
        ("http://host#top", "fragment"),
        ("http://ho st", "spaces"),
        ("http://ho\tst", "control"),
        ("http://host/a b", "spaces"),
        ("http://host/\u00e4", "percent-encoded"),
        ("http://h\u00f6st", "xn--"),
        ("http://2:8000", "IPv4"),
        ("http://10.0.1:8000", "IPv4"),
        ("http://010.0.0.1", "IPv4"),
        ("http://0x7f.1", "IPv4"),
        ("http://1.2.3.256", "IPv4"),
        ("http://[::g]", "IPv6"),
        ("http://[fe80::1%25eth0]", "IPv6"),
        ("http://[::1", "IPv6"),
        ("http://-host", "host name"),
        ("http://a..b", "host name"),
        ("http://ho$t", "host name"),
        ("http://" + "a" * 64, "host name"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(text)
    message = str(caught.value)
    assert says in message
    assert "http://host:port" in message
    assert caught.value.field == "url"
    if "@" not in text:
        assert repr(text) in message


@pytest.mark.parametrize("text", ["http://u:secret@h", "u:secret@h:1", "http://u:sec/secret@h"])
def test_a_password_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(text)
    assert "sec" not in str(caught.value)
    assert "h" in str(caught.value)
