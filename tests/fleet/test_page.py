from __future__ import annotations

import asyncio
import errno
import ssl

import httpx
import pytest

from gateway.fleet.address import Address
from gateway.fleet.page import INSTANCE, NoPage, PageReader

ADDRESS = Address.parse("http://gpu1.internal:8000")


def cause(error: Exception) -> str:
    """What is said of a page whose reading fails like this."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("All connection attempts failed") from error

    with pytest.raises(NoPage) as caught:
        read(fail)
    return str(caught.value)


def read(handler: object, instance: str = "") -> int:
    async def main() -> int:
        transport = httpx.MockTransport(handler)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport) as client:
            return (await PageReader(client, ADDRESS, 1.0, instance=instance).get("/health")).status

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "10.0.0.1:80 refused"), "connection refused"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('10.0.0.1', 80)"), "no route to host"),
        (OSError(errno.ENETUNREACH, "to 10.0.0.1"), "network is unreachable"),
        (ValueError("odd"), "odd"),
        (ValueError(), "ValueError"),
    ],
)
def test_causes_name_no_address(error: Exception, said: str) -> None:
    assert cause(error) == f"GET /health: {said}"


def test_tls() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate is not valid for 'gpu1.internal'")
    error.reason = "CERTIFICATE_VERIFY_FAILED"
    assert cause(error) == "GET /health: TLS: certificate verify failed"


def test_this_gateways_own_pages_are_no_backends() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={INSTANCE: "me"})

    assert read(answer) == 200
    assert read(answer, "another") == 200
    with pytest.raises(NoPage, match="leads back to this gateway itself"):
        read(answer, "me")
