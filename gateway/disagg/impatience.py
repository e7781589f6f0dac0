"""Who would be blocked: how much those who come to an engine lose while it is busy with one prompt.

An engine prefills in the order of arrival and cannot be stopped. A prompt that takes it T seconds
makes those who come meanwhile wait T / 2 on average, and there are T times as many of them: it
costs T squared. That is nothing for a short prompt and more than anything else for a long one. It
is what sorts prompts by length where there are engines that mostly get long ones, whose like can
wait, and others that mostly get short ones, which cannot.
"""

from __future__ import annotations

from policies.congestion import WINDOW, DecayedSums


class Impatience:
    """Per engine, how much of a hurry the requests that came there of late were in."""

    def __init__(self) -> None:
        self._hurry = DecayedSums()

    def add(self, id: str, now: float, patience: float) -> None:
        """Count a request that is sent to an engine.

        Args:
            patience: seconds from its arrival to when its first token is due.
        """
        self._hurry.add(id, now, 1.0 / patience)

    def at(self, id: str, now: float) -> float:
        """Requests per second that come to an engine, each divided by its patience."""
        return self._hurry.at(id, now) / WINDOW
