"""What an answer of Redis says of Redis itself."""

from __future__ import annotations

import re

from gateway.shared.address import Address
from gateway.shared.records import Refused

_AWAY = {
    "LOADING": "is loading its data",
    "READONLY": "is read-only",
    "OOM": "is out of memory",
    "MISCONF": "cannot write to its disk",
    "NOREPLICAS": "has too few replicas to accept writes",
    "MASTERDOWN": "has lost its primary",
    "CLUSTERDOWN": "is in a cluster that is down",
    "BUSY": "is busy with a script",
    "NOAUTH": "wants a password",
    "WRONGPASS": "refuses the user or the password",
    "DENIED": "is in protected mode",
}
"""Errors that hold for whatever is asked next, too."""

# A script reports those of its commands; before Redis 7, within a sentence of its own.
_IN_SCRIPT = re.compile(rf"-({'|'.join(_AWAY)})\b")
_FULL = "max number of clients reached"


def away(error: Refused) -> str | None:
    """Why no command is worth sending for now, in words; None when only this one was refused."""
    text = str(error)
    code = text.partition(" ")[0]
    found = _IN_SCRIPT.search(text) if code == "ERR" else None
    if found is not None:
        code = found[1]
    if _FULL in text:
        return "has no room for another client"
    words = _AWAY.get(code)
    return None if words is None else f"{words} ({code})"


def passing(error: Refused) -> bool:
    """Whether it ends by itself: a cluster is just moving our keys, and has some of them here and
    some there, or its servers do not agree yet."""
    return str(error).startswith(("TRYAGAIN ", "ASK ", "MOVED "))


def unseen(error: Refused) -> bool:
    """Whether the server only has to be sent a script in full, as after each start of its own."""
    return str(error).startswith("NOSCRIPT ")


def redirect(error: Refused, asked: Address) -> tuple[str, Address] | None:
    """Where in the cluster the keys are: ("MOVED", from now on) or ("ASK", this once).

    Args:
        asked: who says so; a server that does not know its own name leaves it out.
    """
    words = str(error).split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    return words[0], Address(host.strip("[]") or asked.host, int(port))
