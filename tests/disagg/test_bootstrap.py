from __future__ import annotations

import json
from pathlib import Path

from tests.cases.pd import PATIENT, says
from tests.harness.gateway_process import GatewayProcess
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import settings
from tests.harness.raw import Answer
from tests.harness.routes import CHAT, text

TEXT = "t0 t1 t2 t3 t4 "


def ask(gateway: GatewayProcess, name: str) -> Answer:
    with gateway.client() as client:
        return client.exchange(CHAT.path, CHAT.stream([text(name, 400)]))


def test_engine_ids_are_asked_for_and_asked_for_again(tmp_path: Path) -> None:
    with Pools("mooncake", dp_size=2) as pools:
        [prefill] = pools.prefills
        tree = settings(pools) | PATIENT | {"health": {"interval": 0.1}}
        del tree["backends"][0]["transfer"]["engine_id"]
        with GatewayProcess(tree, tmp_path) as gateway:
            for number in range(8):  # whichever rank
                assert says(ask(gateway, f"{number}")) == TEXT
            assert len(prefill.parts(Part.PREFILL)) == 8
            assert pools.complaints == []

            # It was started anew.
            pools.reset()
            prefill.engine_ids = ["new_dp0", "new_dp1"]
            ranks = {str(rank): {"engine_id": id} for rank, id in enumerate(prefill.engine_ids)}
            prefill.companions[0].pages["/query"] = json.dumps(ranks).encode()
            seen = len(prefill.companions[0].probes)
            prefill.companions[0].wait(lambda: len(prefill.companions[0].probes) > seen + 1)
            assert says(ask(gateway, "anew")) == TEXT
            [decode] = pools.decodes[0].legs
            assert decode.body["kv_transfer_params"]["remote_engine_id"] in prefill.engine_ids
            assert pools.complaints == []


def test_without_its_ids_an_engine_is_not_paired(tmp_path: Path) -> None:
    with Pools("mooncake") as pools:
        tree = settings(pools, fallback="fail") | {"health": {"interval": 0.1}}
        del tree["backends"][0]["transfer"]["engine_id"]
        registry = pools.prefills[0].companions[0]
        page = registry.pages.pop("/query")
        with GatewayProcess(tree, tmp_path, ready=False) as gateway:
            gateway.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 2, 10.0)
            assert gateway.http.get("/ready").status_code == 503
            registry.pages["/query"] = page
            gateway.settles(lambda metrics: gateway.http.get("/ready").status_code == 200, 10.0)
            assert says(ask(gateway, "there")) == TEXT
            assert pools.prefills[0].parts(Part.PREFILL)
