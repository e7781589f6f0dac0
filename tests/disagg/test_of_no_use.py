"""Answers of prefill engines that no decode leg can be made of."""

from __future__ import annotations

import asyncio

import pytest

from gateway.disagg import prefill_leg
from tests.cases.pd import says
from tests.harness.inside import eventually, serving
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import settings
from tests.harness.routes import CHAT, text

TEXT = "t0 t1 t2 t3 t4 "


def serve(pools: Pools) -> tuple[int, int, int]:
    """One request, which the decode engine serves alone.

    Returns:
        Prompts released, not released, and computed for nobody, as they are counted.
    """

    async def run() -> tuple[int, int, int]:
        tree = settings(pools) | {"health": {"probes": False, "load_interval": None}}
        async with serving(tree) as inside:
            answer = await inside.ask(CHAT.path, CHAT.stream([text("no use", 400)]))
            await eventually(lambda: not inside.holds)
            assert says(answer) == TEXT
            assert answer.header("x-prefixgate-handover") == "local; no_transfer"
            assert not any(backend.breaker.failures for backend in inside.gateway.fleet)
            metrics = inside.gateway.metrics
            orphaned = sum(metrics.orphaned.values())
            return metrics.releases, orphaned, sum(metrics.wasted_prefills.values())

    counts = asyncio.run(run())
    assert [leg.part for leg in pools.decodes[0].legs] == [Part.WHOLE]
    return counts


def test_one_that_is_too_large_is_nobodys_fault_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill_leg, "MAX_ANSWER", 1000)
    with Pools("trtllm", prefills=2) as pools:
        for engine in pools.prefills:
            engine.spoil = lambda body: body[:-1] + b" " * 100_000 + b"}"
        assert serve(pools) == (0, 1, 1)
        assert sum(len(engine.legs) for engine in pools.prefills) == 1


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm"])
def test_what_may_be_held_and_cannot_be_named_is_counted(protocol: str) -> None:
    with Pools(protocol) as pools:
        pools.prefills[0].spoil = lambda body: (
            b'{"choices":[{"finish_reason":"length","disaggregated_params":7}],'
            b'"kv_transfer_params":7}'
        )
        assert serve(pools) == (0, 1, 1)


@pytest.mark.parametrize("protocol", ["nixl_pull", "trtllm"])
def test_one_that_holds_nothing_leaves_nothing_to_count(protocol: str) -> None:
    with Pools(protocol) as pools:
        pools.prefills[0].spoil = lambda body: b'{"choices":[{"finish_reason":"length"}]}'
        assert serve(pools) == (0, 0, 1)
