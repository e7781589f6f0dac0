from __future__ import annotations

from typing import Any

import pytest

from gateway.config import BackendConfig, BreakerConfig, ConnectorName, Disagg, Transfer
from gateway.disagg.nixl_pull import NIXL_PULL
from gateway.disagg.pairs import APART, Pairs
from gateway.disagg.route import Route
from gateway.fleet.backend import Backend, Source
from gateway.fleet.facts import EngineFacts
from gateway.types import EngineKind, Role

PULL = ConnectorName.NIXL_PULL


def backend(port: int, role: Role, **options: Any) -> Backend:
    config = BackendConfig(url=f"http://127.0.0.1:{port}", role=role, models=["m"], **options)
    return Backend(config, Source.CONFIG, lambda: 0.0, BreakerConfig())


P, D = backend(1, Role.PREFILL), backend(2, Role.DECODE)


def pairs(clock: Any = lambda: 0.0, **settings: Any) -> Pairs:
    return Pairs(Disagg(connector=PULL, **settings), clock)


def test_a_prefill_engine_works_for_a_decode_engine_of_its_model_and_protocol() -> None:
    assert pairs().connector(P, D) is NIXL_PULL
    assert pairs().connector(D, P) is None
    assert pairs().connector(P, backend(3, Role.UNIFIED)) is None
    push = Transfer(connector=ConnectorName.NIXL_PUSH)
    assert pairs().connector(P, backend(3, Role.DECODE, transfer=push)) is None
    assert Pairs(Disagg(), lambda: 0.0).connector(P, D) is None


def test_engines_that_do_not_fit_are_not_paired() -> None:
    odd = backend(3, Role.DECODE, transfer=Transfer(tp_size=3))
    even = backend(4, Role.PREFILL, transfer=Transfer(tp_size=2))
    assert pairs().connector(even, odd) is None


@pytest.mark.parametrize(
    ("connector", "kind", "speaks"),
    [
        (PULL, EngineKind.VLLM, True),
        (PULL, EngineKind.SGLANG, False),
        (PULL, EngineKind.OPENAI, True),
        (ConnectorName.SGLANG, EngineKind.VLLM, False),
        (ConnectorName.TRTLLM, EngineKind.VLLM, False),
        (ConnectorName.SHARED_STORE, EngineKind.SGLANG, True),
    ],
)
def test_P16_engines_that_turn_out_to_be_of_another_kind_are_not_paired(
    caplog: pytest.LogCaptureFixture, connector: ConnectorName, kind: EngineKind, speaks: bool
) -> None:
    made = Pairs(Disagg(connector=connector), lambda: 0.0)
    computes, generates = backend(1, Role.PREFILL), backend(2, Role.DECODE)
    assert made.connector(computes, generates) is not None  # nothing is known of them yet
    generates.facts = EngineFacts(kind, "/health", ("m",))
    made.changed()
    assert (made.connector(computes, generates) is not None) is speaks
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ([] if speaks else [f"{kind} does not speak {connector}"])


def test_why_engines_do_not_fit_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    made = pairs()
    odd = [backend(port, Role.DECODE, transfer=Transfer(tp_size=3)) for port in (3, 4)]
    even = backend(5, Role.PREFILL, transfer=Transfer(tp_size=2))
    for _ in range(2):
        assert [made.connector(even, each) for each in odd] == [None, None]
        made.changed()
    [record] = caplog.records
    assert "2 tensor-parallel ranks, and 3" in record.getMessage()
    assert even.id in record.getMessage()


def test_two_that_fail_in_a_row_are_kept_apart_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    now = [0.0]
    made = pairs(lambda: now[0])
    made.failed(P.id, D.id)
    made.worked(P.id, D.id)
    made.failed(P.id, D.id)
    assert made.connector(P, D) is NIXL_PULL
    made.failed(P.id, D.id)
    assert made.connector(P, D) is None
    assert made.connector(backend(3, Role.PREFILL), D) is NIXL_PULL
    now[0] = APART + 0.1
    assert made.connector(P, D) is NIXL_PULL
    made.failed(P.id, D.id)
    now[0] += APART + 0.1
    assert made.connector(P, D) is None  # for twice as long
    told = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(": ")[2] for line in told] == [
        "not paired for 5 s",
        "not paired for 10 s",
    ]
    assert all(id in line for id in (P.id, D.id) for line in told)
    made.worked(P.id, D.id)
    assert caplog.records[-1].getMessage() == f"backend {D.id} takes over from backend {P.id} again"
    made.failed(P.id, D.id)
    made.failed(P.id, D.id)
    made.forget(P.id)
    assert made.connector(P, D) is NIXL_PULL


def test_p15_no_pairing_is_made_twice() -> None:
    made = pairs()
    all_of_them = [made.pair(Route.CHAT, P, D) for _ in range(1000)]
    assert len({pairing.id for pairing in all_of_them}) == 1000
    assert len({pairing.room for pairing in all_of_them}) == 1000


def test_who_serves_requests_that_are_not_handed_over() -> None:
    assert pairs().serves_alone(D)
    assert not pairs(fallback="fail").serves_alone(D)
    assert pairs(fallback="fail").serves_alone(backend(3, Role.UNIFIED))
    sglang = Pairs(Disagg(connector=ConnectorName.SGLANG), lambda: 0.0)
    assert not sglang.serves_alone(D)
