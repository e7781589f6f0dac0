"""The table of what becomes of handovers that fail, and each of its cases as engines play it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from threading import Event
from typing import Any, NamedTuple

from gateway.types import Role
from tests.harness.behaviour import Behaviour, Cut, Framing
from tests.harness.gateway_process import ROOT
from tests.harness.pd.faults import Fault
from tests.harness.pd.reference import CONCURRENT, PROTOCOLS
from tests.harness.recorded import Recorded

LEGS = ("prefill", "decode")
WHEN = ("before", "after")
TAIL = "tail"
NEVER = "never"
LONG = 3600.0
OF_A_LEG = (b"kv_transfer_params", b"disaggregated_params", b"bootstrap_room")
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
COMMENT = b"6\r\n: hi\n\n\r\n"


class Row(NamedTuple):
    """One of the table, as it is written."""

    leg: str
    fault: str
    when: str
    protocols: str
    alone: str
    blamed: str
    fallback: str
    needed: str
    blamed_there: str

    def covers(self, leg: str, fault: str, when: str, protocol: str) -> bool:
        kind = "concurrent" if protocol in CONCURRENT else "sequential"
        return (
            leg == self.leg
            and fault in self.fault.split(", ")
            and when in self.when.split(", ")
            and self.protocols in ("all", kind)
        )


def rows() -> list[Row]:
    lines = (ROOT / "docs" / "handover-faults.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [Row(*row) for row in cells[2:]]


FAULTS = tuple(fault.name.lower() for fault in Fault)
PRODUCT = [
    *product(LEGS, FAULTS, WHEN, PROTOCOLS),
    *product(("prefill",), (TAIL,), WHEN, PROTOCOLS),
]
"""Leg, fault, when, protocol."""


class Expected(NamedTuple):
    outcome: str
    blamed: str
    fallback: str


@dataclass(eq=False)
class Cell:
    """One case, with a model and engines' addresses of its own.

    Attributes:
        leaves: the client does, just before the fault would come.
        gate: lets the fault come.
        failed: it has been played.
    """

    leg: str
    fault: str
    when: str
    protocol: str
    leaves: bool
    row: Row
    gate: Event = field(default_factory=Event)
    failed: bool = False

    @property
    def name(self) -> str:
        end = "leaves" if self.leaves else "stays"
        return f"{self.leg}-{self.fault}-{self.when}-{end}"

    @property
    def concurrent(self) -> bool:
        return self.protocol in CONCURRENT

    @property
    def expected(self) -> Expected:
        row = self.row
        if self.protocol == "sglang":
            return Expected(row.needed, row.blamed_there, "")
        return Expected(row.alone, row.blamed, row.fallback)

    @property
    def tail(self) -> bool:
        """What goes wrong is the end of a prefill answer, which nobody waits for."""
        late = self.leg == "prefill" and self.when == "after" and not self.concurrent
        return self.fault == TAIL or late

    def behaviour(self, role: Role, request: Recorded) -> Behaviour | None:
        """How the engine answers a request that came for this case."""
        a_leg = any(name in request.body for name in OF_A_LEG)
        if self.protocol == "shared_store":
            a_leg = self.tail or not self.failed or role is Role.PREFILL
        if not a_leg or request.path.endswith("/abort_request") or b'"prompt":"-"' in request.body:
            return None
        if role.value == self.leg:
            self.failed = True
            return self._tail() if self.tail else self._fault(request)
        return self._other()

    def _fault(self, request: Recorded) -> Behaviour:
        if self.leg == "decode" and self.when == "after":
            return self._after_head()
        gate = None if self.when == "before" and not self.leaves else self.gate
        if self.leg == "prefill" and self.concurrent:
            gate = self.gate
        match Fault[self.fault.upper()]:
            case Fault.RESET:
                return Behaviour(script=(Cut.RST,), until=gate)
            case Fault.HANG:
                return Behaviour(hang=True)
            case Fault.COMMENTS if self.leg == "decode":
                return Behaviour(silent_after=0, comments=0.05, until=gate)
            case Fault.COMMENTS:
                return Behaviour(script=(STREAM_HEAD, *(COMMENT, 0.05) * 100), until=gate)
            case fault:
                return Behaviour(status=int(fault), until=gate)

    def _after_head(self) -> Behaviour:
        """Of a decode leg."""
        native = {"early_head": True, "until": self.gate if self.leaves else None}
        match Fault[self.fault.upper()]:
            case Fault.RESET if not self.leaves:
                return Behaviour(script=(STREAM_HEAD, 0.05, Cut.RST))
            case Fault.RESET:
                return Behaviour(**native, cut_after=0, cut=Cut.RST)
            case Fault.HANG:
                return Behaviour(**native, silent_after=0)
            case Fault.COMMENTS:
                return Behaviour(**native, silent_after=0, comments=0.05)
            case fault if self.concurrent and not self.leaves:
                # Before anything of the cache is there.
                return Behaviour(script=(STREAM_HEAD, 0.05, _chunk(_error(fault)), b"0\r\n\r\n"))
            case fault:
                return Behaviour(**native, error_after=0, style=lambda _: _error(fault))

    def _other(self) -> Behaviour | None:
        """Of the leg that does not fail."""
        if self.leg == "prefill":
            after = self.when == "after"
            return Behaviour(early_head=after, until=self.gate if after and self.tail else None)
        fails_at_once = self.fault not in ("hang", "comments") and not self.leaves
        if self.concurrent and fails_at_once:
            return Behaviour(ttft=LONG)  # it is under way when the other one fails
        return None

    def _tail(self) -> Behaviour:
        """The answer and a blank for each byte of it, which come far later."""
        gate = self.gate if self.leaves and self.when == "before" else None
        return Behaviour(framing=Framing.CHUNKED, pieces=2, tail=LONG, until=gate)


def cells(protocol: str) -> Iterator[Cell]:
    """All of them that there can be with a protocol."""
    table = rows()
    for leg, fault, when, spoken in PRODUCT:
        if spoken != protocol:
            continue
        [row] = [row for row in table if row.covers(leg, fault, when, protocol)]
        if row.alone == NEVER:
            continue
        for leaves in (False, True):
            yield Cell(leg, fault, when, protocol, leaves, row)


def _error(fault: Fault) -> bytes:
    error: dict[str, Any] = {"message": "it failed", "type": "fake", "code": int(fault)}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
