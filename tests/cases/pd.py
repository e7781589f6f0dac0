"""A gateway in front of fake prefill and decode engines of one protocol."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.harness.gateway_process import GatewayProcess
from tests.harness.pd.engine import PdEngine
from tests.harness.pd.leg import Leg, Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import settings
from tests.harness.raw import Answer
from tests.harness.routes import CHAT, Route, text

SOON = 3.0
"""Where a case says one second; what is under way then would go on for ten times as long."""
CAPPED = ("nixl_pull", "nixl_push", "mooncake", "shared_store")
"""The gateway makes their prefill legs end after a token; the other engines do that themselves."""
OF_TRANSFER = frozenset(
    {
        "kv_transfer_params",
        "disaggregated_params",
        "prompt_token_ids",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "rid",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
    }
)
# Failures that tests make on purpose open no breaker, and are not held against a pair for long.
PATIENT = {
    "breaker": {"failures": 1000, "share": 1.0, "open": 0.1, "max_open": 0.1},
    "backpressure": {"avoid": 0.02, "max_avoid": 0.02},
}


class Site:
    """Attributes:
    gw: hands over all that it can.
    """

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        protocol: str,
        *,
        pools: dict[str, int] | None = None,
        disagg: dict[str, Any] | None = None,
        **sections: Any,
    ) -> None:
        self.protocol = protocol
        self.pools = stack.enter_context(Pools(protocol, **(pools or {})))
        tree = settings(self.pools, **(disagg or {}))
        self.gw = stack.enter_context(GatewayProcess(tree | PATIENT | sections, directory))
        self._texts = 0

    @property
    def prefill(self) -> PdEngine:
        return self.pools.prefills[0]

    @property
    def decode(self) -> PdEngine:
        return self.pools.decodes[0]

    def body(self, route: Route = CHAT, **extra: Any) -> dict[str, Any]:
        """A request for a prompt that no engine has seen."""
        self._texts += 1
        return {**route.body([text(f"{id(self)} {self._texts}", 300)]), **extra}

    def ask(self, body: Any, path: str = CHAT.path, **options: Any) -> Answer:
        with self.gw.client() as client:
            return client.exchange(path, body, **options)

    def legs(self, part: Part) -> list[Leg]:
        return [leg for engine in self.pools.engines for leg in engine.parts(part)]

    def pair(self) -> tuple[Leg, Leg]:
        """The two legs of the one request there was."""
        [prefill], [decode] = self.legs(Part.PREFILL), self.legs(Part.DECODE)
        return prefill, decode


def original(leg: Leg) -> list[tuple[str, Any]]:
    """The members of a body in their order, without what the protocol has put there."""
    return [(name, value) for name, value in leg.body.items() if name not in OF_TRANSFER]


def says(answer: Answer) -> str:
    """The text of a chat completion, streamed or not; what else there is when it is none."""
    if answer.status != 200:
        return f"{answer.status} {answer.body!r}"
    if b"event-stream" in (answer.header("content-type") or "").encode():
        assert answer.stream.errors == []
        assert answer.stream.done
        return answer.stream.text
    return str(answer.json["choices"][0]["message"]["content"])
