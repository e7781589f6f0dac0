"""Roles alone hand nothing over."""

from __future__ import annotations

from pathlib import Path

from tests.disagg.fleet import chat, gateway_for
from tests.harness.pd.pools import Pools


def test_roles_without_a_connector_are_warned_of_and_hand_nothing_over(tmp_path: Path) -> None:
    with (
        Pools("nixl_pull", prefills=1, decodes=2) as pools,
        gateway_for(pools, tmp_path, disagg={"connector": None}) as gateway,
        gateway.client() as client,
    ):
        client.request("/v1/chat/completions", chat())
        answer = client.answer()
        assert answer.status == 200
        assert answer.header("x-prefixgate-handover").startswith("local; ")
        assert "role prefill and no connector: 1." in gateway.log
        assert "role decode and no connector: 2." in gateway.log
