"""The ways in which a leg fails, as changes to a fake's behaviour."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from tests.harness.behaviour import Cut


class Fault(StrEnum):
    REFUSED = "400"
    BUSY = "429"
    BROKEN = "500"
    RESET = "reset"
    HANG = "hang"
    COMMENTS = "comments"
    """A stream that is kept open with comment lines and never says anything."""


JSON_HEAD = b"HTTP/1.1 200 Fake\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


def before_head(fault: Fault) -> dict[str, Any]:
    """Fail with no answer before; comments, which need a head, come at once after one."""
    match fault:
        case Fault.RESET:
            return {"script": (Cut.RST,)}
        case Fault.HANG:
            return {"hang": True}
        case Fault.COMMENTS:
            return after_head(fault)
        case _:
            return {"status": int(fault)}


def after_head(fault: Fault, *, streams: bool = True) -> dict[str, Any]:
    """Fail when a head with status 200 is out and no content.

    Args:
        streams: the answer is a stream; else it is JSON, whose head is followed by nothing or by
            the end of the connection.
    """
    if not streams:
        end = (Cut.RST,) if fault is Fault.RESET else (3600.0,)
        return {"script": (JSON_HEAD, *end)}
    match fault:
        case Fault.RESET:
            return {"early_head": True, "cut_after": 0, "cut": Cut.RST, "ttft": 0.02}
        case Fault.HANG:
            return {"early_head": True, "silent_after": 0}
        case Fault.COMMENTS:
            return {"early_head": True, "silent_after": 0, "comments": 0.05}
        case _:
            return {"early_head": True, "error_after": 0}
