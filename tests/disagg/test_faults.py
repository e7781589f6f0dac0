from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.disagg.fleet import CONCURRENT, chat, gateway_for
from tests.harness.gateway_process import ROOT, GatewayProcess
from tests.harness.pd.engine import PdEngine
from tests.harness.pd.faults import Fault, after_head, before_head
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools

PROTOCOLS = ("nixl_pull", "nixl_push", "mooncake", "sglang", "trtllm", "shared_store")
SLOW = (Fault.HANG, Fault.COMMENTS)
FEW = ("nixl_pull", "mooncake", "sglang")
"""Those that the slow faults are tried with: one of each kind."""


class Row(NamedTuple):
    leg: str
    fault: Fault
    when: str
    alone: str
    needed: str
    blamed: str
    fallback: str


def rows() -> list[Row]:
    """The table that people read."""
    lines = (ROOT / "docs" / "handover-faults.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [Row(leg, Fault[fault.upper()], *rest) for leg, fault, *rest in cells[2:]]


class Fleet(NamedTuple):
    pools: Pools
    gateway: GatewayProcess


@pytest.fixture(scope="module", params=PROTOCOLS)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    with (
        Pools(request.param) as pools,
        gateway_for(
            pools,
            tmp_path_factory.mktemp("gateway"),
            breaker={"failures": 1000, "share": 1.0},
            backpressure={"avoid": 0.05},
            timeouts={"first_byte": 1.0, "prefill_first_byte": 0.5},
        ) as gateway,
    ):
        yield Fleet(pools, gateway)


def failures(fleet: Fleet) -> dict[str, int]:
    """What each engine has been blamed for so far."""
    roles = {engine.url: engine.role.value for engine in fleet.pools.engines}
    told = fleet.gateway.admin("GET", "/backends")
    return {roles[entry["url"]]: entry["breaker"]["failures"] for entry in told}


def rest(fleet: Fleet) -> None:
    """Have a request handed over, so that nothing is remembered of earlier faults."""
    fleet.pools.reset()
    fleet.gateway.settles(lambda metrics: all(state == "free" for state in busy(fleet)))
    assert fleet.gateway.post("/v1/chat/completions", chat("rest")).status_code == 200
    fleet.gateway.settles_idle()
    fleet.pools.reset()


def ended(engine: PdEngine) -> None:
    """Wait for the end of what an engine was sent: within a second it is there."""
    engine.wait(lambda: all(leg.over for leg in engine.legs), 1.0)


def busy(fleet: Fleet) -> list[str]:
    told = fleet.gateway.admin("GET", "/backends")
    return ["free" if entry["busy_seconds"] is None else "busy" for entry in told]


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(row[:3]).lower())
def test_done4_a_leg_fails(fleet: Fleet, row: Row) -> None:
    pools, gateway = fleet
    if row.fault in SLOW and pools.protocol not in FEW:
        pytest.skip("it takes a second, and one protocol of each kind is enough")
    rest(fleet)
    before, blamed_before = gateway.metrics(), failures(fleet)
    engine = (pools.prefills if row.leg == "prefill" else pools.decodes)[0]
    if row.when == "before":
        engine.next(**before_head(row.fault))
        if row.fault is Fault.RESET:
            # On a kept connection the first one shows no more than that it had been closed. Then
            # the prompt that nobody fetched is released, with some protocols at this engine.
            released = row.leg == "decode" and pools.protocol in ("nixl_pull", "mooncake")
            for _ in range(2 if released else 1):
                engine.next(**before_head(row.fault))
    elif row.leg == "prefill":
        engine.next(**after_head(row.fault, streams=False))
    else:
        engine.next(**after_head(row.fault))
    if row.fault is Fault.COMMENTS and row.leg == "prefill":
        engine.queued.clear()
        engine.next(script=(COMMENTS, *(b"6\r\n: hi\n\n\r\n", 0.05) * 100))
    wanted = row.needed if pools.protocol == "sglang" else row.alone

    with gateway.client() as client:
        client.request("/v1/chat/completions", chat(f"{row}"))
        answer = client.answer()

    if wanted == "error":
        assert answer.status == 200
        assert answer.stream.errors
    else:
        assert answer.status == int(wanted)
    if wanted == "200":
        assert answer.stream.text == "t0 t1 t2 t3 t4 "
        assert answer.stream.done
    metrics = gateway.settles_idle()
    new = failures(fleet)
    blamed = [role for role, count in new.items() if count > blamed_before[role]]
    expected = [] if row.blamed == "nobody" else [row.blamed]
    either = row.fault is Fault.HANG and (row.leg, row.when) != ("decode", "after")
    if pools.protocol == "sglang" and (either or row.fault is Fault.BROKEN):
        expected = []  # either engine may hang; nobody else has served the request
    assert blamed == expected
    fallbacks = metrics.by("prefixgate_pd_fallback_total", "reason")
    earlier = before.by("prefixgate_pd_fallback_total", "reason")
    reasons = [reason for reason, count in fallbacks.items() if count > earlier.get(reason, 0)]
    if pools.protocol != "sglang":
        assert reasons == ([row.fallback] if row.fallback else [])
    for other in pools.engines:
        if other is not engine:
            ended(other)
    if wanted == "200":
        assert answer.header("x-prefixgate-handover") == f"local; {row.fallback}"
        parts = [leg.part for leg in pools.decodes[0].legs]
        assert Part.WHOLE in parts or pools.protocol == "shared_store"
    assert pools.complaints == []


COMMENTS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_done4_a_client_leaves_a_leg_that_hangs(fleet: Fleet, leg: str) -> None:
    pools, gateway = fleet
    rest(fleet)
    before, blamed = gateway.metrics(), failures(fleet)
    engine = (pools.prefills if leg == "prefill" else pools.decodes)[0]
    engine.next(hang=True)
    with gateway.client() as client:
        client.request("/v1/chat/completions", chat(leg))
        engine.wait(lambda: bool(engine.legs))
    for each in pools.engines:
        ended(each)
    gateway.settles_idle()
    assert failures(fleet) == blamed
    if leg == "prefill" and pools.protocol not in CONCURRENT:
        assert pools.decodes[0].legs == []
    assert pools.complaints == []
    if pools.protocol == "trtllm" and leg == "decode":
        # The protocol has no word for it.
        name = "prefixgate_pd_orphaned_total"
        gateway.settles(lambda metrics: metrics.total(name) == before.total(name) + 1)
    elif pools.protocol not in ("trtllm", "nixl_push"):
        engine.wait(lambda: pools.held == 0)
