"""Who would be blocked: how much those who come to an engine lose while it is busy with one prompt.

An engine prefills in the order of arrival and cannot be stopped. A prompt that takes it T seconds
makes those who come meanwhile wait T / 2 on average, and there are T times as many of them: it
costs T squared. That is nothing for a short prompt and more than anything else for a long one. It
is what sorts prompts by length where there are engines that mostly get long ones, whose like can
wait, and others that mostly get short ones, which cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.types import Role
from policies.congestion import WINDOW, Decayed


class Impatience:
    """Per role, what the requests that came to its engines of late were in a hurry.

    Args:
        roles: of each engine, by id.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = roles
        self._hurry = {role: Decayed() for role in Role}

    def add(self, id: str, now: float, patience: float) -> None:
        """Count a request that is sent to an engine.

        Args:
            patience: seconds from its arrival to when its first token is due.
        """
        self._hurry[self._roles[id]].add(now, 1.0 / max(patience, 1e-3))

    def at(self, now: float, engines: Iterable[str]) -> dict[str, float]:
        """For each engine, requests per second that come there, each divided by its patience."""
        roles = [(id, self._roles[id]) for id in engines]
        counts = {role: sum(each is role for _, each in roles) for role in Role}
        return {id: self._hurry[role].at(now) / (WINDOW * counts[role]) for id, role in roles}
