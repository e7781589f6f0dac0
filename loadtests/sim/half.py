"""What makes a simulated engine one half of a pair: the legs it takes, and what it tells others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from xxhash import xxh3_64_hexdigest

from gateway.types import Role
from loadtests.sim import tokens
from loadtests.sim.calls import ApiError, Call
from loadtests.sim.engine import Engine
from loadtests.sim.fetcher import LET_GO, READ, Fetcher
from loadtests.sim.legs import Leg, LegReader, Protocol
from loadtests.sim.network import GBPS, Network
from loadtests.sim.offers import Offer, Offers
from loadtests.sim.timeline import Timeline

STOPS_BY_ITSELF = frozenset({Protocol.SGLANG, Protocol.TRTLLM})
"""The prefill engine ends after a token, whatever the request's limit."""


@dataclass(slots=True, frozen=True)
class HalfOptions:
    """
    Attributes:
        host, port: of the engine.
        link: bytes per second between two engines.
        patience: seconds that one half waits for the other.
        recompute: a decode engine computes what it cannot read.
        overlaps: layers are sent as soon as they are computed.
    """

    role: Role
    protocol: Protocol
    host: str
    port: int
    link: float = 100 * GBPS
    patience: float = 300.0
    recompute: bool = False
    overlaps: bool = False


class Half:
    def __init__(self, options: HalfOptions, engine: Engine, timeline: Timeline) -> None:
        self.options = options
        self._reader = LegReader(options.protocol, options.role, options.host, options.port)
        self.offers = Offers(engine, options.patience)
        self.fetcher = Fetcher(
            options.protocol,
            engine,
            Network(options.link),
            timeline,
            engine.profile.memory.kv_bytes_per_token,
            options.recompute,
            options.overlaps,
        )

    def leg(self, data: bytes, request_id: str, call: Call) -> Leg | None:
        """Which half of a handover a request is; None when it is for this engine alone.

        Raises:
            ApiError: it cannot be handed over.
        """
        count = len(call.prompts[0]) // tokens.TOKEN_BYTES
        leg = self._reader.read(data, request_id, count)
        if leg is None:
            return None
        if len(call.prompts) > 1 or call.n > 1:
            raise ApiError("one prompt and one answer can be handed over", param=None)
        if leg.role is Role.PREFILL and self.options.protocol in STOPS_BY_ITSELF:
            call.output_tokens, call.capped = 1, True
        return leg

    async def announce(self, leg: Leg, call: Call) -> Offer:
        """Raises: ApiError, as `Offers.announce`."""
        return await self.offers.announce(leg, digest(call))

    def routes(self) -> list[Route]:
        async def read(request: Request) -> Response:
            asked = await request.json()
            return _json(await self.offers.read(asked["key"], asked["prompt"], asked["shown"]))

        async def let_go(request: Request) -> Response:
            asked = await request.json()
            return _json({"kept": self.offers.let_go(asked["key"])})

        async def query(request: Request) -> Response:
            address = f"{self.options.host}:{self.options.port}"
            entry = {"engine_id": self._reader.engine_id, "worker_addr": {"0": {"0": address}}}
            return _json({"0": entry})

        routes = [
            Route(READ, read, methods=["POST"]),
            Route(LET_GO, let_go, methods=["POST"]),
        ]
        if self.options.protocol is Protocol.MOONCAKE:
            routes.append(Route("/query", query))
        return routes


def digest(call: Call) -> str:
    """Of what a prompt's KV cache is of."""
    return xxh3_64_hexdigest(call.namespace + call.prompts[0])


def _json(data: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")
