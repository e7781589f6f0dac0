"""Engines tell requests apart by their ids, whichever gateway they come from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.conftest import StartBackend, StartGateway
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import COMPLETIONS

REQUESTS = 1000


def test_C04_ids_are_unique_over_processes(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    backend.behave(n_tokens=1)
    processes = [gateway([backend]) for _ in range(2)]

    def send(process: GatewayProcess) -> None:
        with process.client() as client:
            for number in range(REQUESTS):
                named = {"x-request-id": "the-clients"} if number % 2 else {}
                answer = client.exchange(
                    COMPLETIONS.path, COMPLETIONS.body(["hello"]), headers=named.items()
                )
                assert answer.status == 200
                assert answer.header("x-request-id") == "the-clients" or not named

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(send, processes))
    ids = [request.header(b"x-request-id") for request in backend.requests]
    assert len(ids) == len(set(ids)) == 2 * REQUESTS
    assert b"the-clients" not in ids
