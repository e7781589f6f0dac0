"""P15: what pairs two legs is the gateway's own, and no two of any process are the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from gateway.disagg.connector import Connector
from gateway.disagg.ids import PairingIds
from gateway.disagg.route import Route
from tests.disagg.legs import CARRIED, D, P, body_of, legs, name, pairing
from tests.harness.gateway_process import ROOT

MAKE = """
from gateway.disagg.connector import Side
from gateway.disagg.ids import PairingIds
from gateway.disagg.route import Route
side, ids = Side(host="a"), PairingIds()
for _ in range(500):
    pair = ids.pair(Route.CHAT, side, side)
    print(pair.id, pair.room, pair.transfer_id)
"""


def test_P15_a_thousand_pairings_of_two_processes_are_all_distinct() -> None:
    run = [sys.executable, "-c", MAKE]
    texts = [
        subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    pairs = [line.split() for text in texts for line in text.splitlines()]
    for column in zip(*pairs, strict=True):
        assert len({*column}) == 1000


@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\xff"])
def test_P15_rooms_are_in_their_bounds(byte: bytes) -> None:
    pair = PairingIds(lambda count: byte * count).pair(Route.CHAT, P, D)
    assert 2**62 <= pair.room < 2**63
    assert len(pair.id) == 32


def test_P15_every_drawn_bit_counts() -> None:
    drawn = iter([bytes(24), bytes(15) + b"\x01" + bytes(8), bytes(23) + b"\x04"])
    ids = PairingIds(lambda count: next(drawn))
    none, first, second = (ids.pair(Route.CHAT, P, D) for _ in range(3))
    assert none.id != first.id
    assert none.transfer_id != first.transfer_id
    assert none.room != second.room


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
def test_P15_ids_of_clients_pair_nothing(connector: Connector, route: Route) -> None:
    """Two requests with the same ids of their own have different ones here."""
    body = body_of(route, request_id="mine", rid="mine")
    pair = pairing(route)
    sent = [legs(connector, route, body) for _ in range(2)]
    headers = {dict(leg.headers)[b"x-request-id"] for both in sent for leg in both}
    assert len(headers) == 2
    assert pair.id.encode() not in headers
    for both in sent:
        for leg in both:
            if connector.name == "sglang":
                assert b'"rid":"mine"' not in leg.body
                assert b'"rid": "mine"' not in leg.body
            elif connector.name in ("nixl_pull", "nixl_push", "mooncake"):
                assert b'"request_id"' not in leg.body


def test_P15_ranks_follow_rooms() -> None:
    pair = pairing(Route.CHAT, replace(P, dp_size=3))
    assert [replace(pair, room=room).prefill_rank for room in range(6)] == [0, 1, 2, 0, 1, 2]
