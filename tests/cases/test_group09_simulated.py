"""Group 9: a gateway in front of simulated prefill and decode engines, over sockets."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness import sse
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import CHAT, text
from tests.sim.test_half import PROTOCOLS, Pair, start


def backends(pair: Pair) -> list[dict[str, Any]]:
    """As the settings have them; a simulated engine looks like vLLM unless they say otherwise."""
    port = int(pair.prefill.rpartition(":")[2])
    by_id = {"engine_id": f"sim-127.0.0.1-{port}"}
    transfer: dict[str, dict[str, Any]] = {
        "nixl_push": {**by_id, "side_channel_port": port},
        "mooncake": {**by_id, "bootstrap_port": port},
        "sglang": {"bootstrap_port": port},
    }
    common: dict[str, Any] = {"models": ["m"]}
    if pair.protocol in ("sglang", "trtllm"):
        common["kind"] = pair.protocol
    prefill = {"url": pair.prefill, "role": "prefill", **common}
    if pair.protocol in transfer:
        prefill["transfer"] = transfer[pair.protocol]
    return [prefill, {"url": pair.decode, "role": "decode", **common}]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prompts_are_computed_at_one_and_answered_by_the_other(
    tmp_path: Path, protocol: str
) -> None:
    with ExitStack() as stack:
        pair = start(stack, protocol)
        disagg = {"connector": protocol, "min_uncached_tokens": 0}
        tree = {"backends": backends(pair), "disagg": disagg}
        gw = stack.enter_context(GatewayProcess(tree, tmp_path))
        tokens = 0
        for number in range(4):
            extra = {"max_tokens": 8, "stream_options": {"include_usage": True}}
            body = {**CHAT.stream([text(f"{number}", 2000)]), **extra}
            stream = sse.read(gw.post(CHAT.path, body).content)
            assert stream.errors == []
            assert len(stream.text.split()) == 8
            tokens += stream.payloads[-1]["usage"]["prompt_tokens"] - 1
        assert pair.metric(pair.decode, "external_prefix_cache_hits_total") == tokens
        assert pair.used == 0
