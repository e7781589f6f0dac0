"""Where the session key hashes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.types import Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.least_load import LeastLoad, LeastLoadParams
from policies.rendezvous import highest, weight


class SessionParams(Params, frozen=True):
    """None."""


class Session:
    """Keeps each session on one backend.

    What. The session key that the client sent is hashed with each backend's id; the highest hash
    wins. Requests without a session key go by load, as in `least_load`.

    Inputs. The session key.

    Parameters. None.

    Example. With four backends, adding a fifth moves one session in five, all of them to the
    fifth; removing it again brings all of them back.

    Trade-offs. Exact reuse inside a session with nothing to keep or to share, if clients send the
    key. Nothing is shared between sessions, and a backend that drew the busy sessions stays busy;
    a session moves only when its backend is gone or full.
    """

    name: ClassVar[str] = "session"
    late_binding: ClassVar[bool] = False
    params_type: ClassVar[type[Params]] = SessionParams

    def __init__(self, params: SessionParams) -> None:
        self._params = params
        self._sessionless = LeastLoad(LeastLoadParams())

    @property
    def params(self) -> SessionParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        if len(candidates) == 1:
            return Decision(candidates[0].id, Reason.ONLY)
        if not request.session:
            by_load = self._sessionless.choose(request, candidates)
            return Decision(by_load.backend, Reason.SESSIONLESS, by_load.scores)
        return Decision(highest(request.session.encode(), candidates).id, Reason.SESSION)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        if not request.session:
            return self._sessionless.explain(request, candidates)
        key = request.session.encode()
        return [{"weight": weight(key, candidate.id) / 2**64} for candidate in candidates]
