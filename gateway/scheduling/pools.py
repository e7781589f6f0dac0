"""All pools, by model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gateway.config import Scheduling
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import Screen
from gateway.scheduling.pool import Pool
from gateway.types import Clock, Role
from policies.base import Policy

ANY_MODEL = ""
"""The pool of requests that name no model: every backend can take them."""


class Pools:
    """One pool a model, made as backends come and dropped, with its counters, once they are gone
    and nothing waits for them. They share policy and limits."""

    def __init__(self, policy: Policy, scheduling: Scheduling, clock: Clock) -> None:
        self._policy = policy
        self._scheduling = scheduling
        self._clock = clock
        self._pools: dict[str, Pool] = {}
        self._closed = False

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def get(self, model: str) -> Pool | None:
        """The pool of a model, None when no backend was ever known to serve it."""
        return self._pools.get(model)

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        for pool in self._pools.values():
            pool.policy = policy

    @property
    def scheduling(self) -> Scheduling:
        return self._scheduling

    @scheduling.setter
    def scheduling(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        for pool in tuple(self._pools.values()):
            pool.scheduling = scheduling

    def update(
        self,
        serving: Mapping[str, Sequence[BackendLoad]],
        avoided: Mapping[str, Sequence[BackendLoad]] | None = None,
        screen: Screen | None = None,
        screened: Collection[str] = (),
    ) -> None:
        """Set which backends can take requests now.

        Args:
            serving: by model. A model that is missing keeps its pool, empty, while tickets wait
                in it: its backends may come back before they expire.
            avoided: those that could, by model, but for being busy while others are not.
            screen: what else a backend must be able to do for a request, for the models `screened`.
        """
        for model, loads in serving.items():
            pool = self._pools.get(model)
            if pool is None:
                pool = Pool(model, Role.UNIFIED, self._policy, self._scheduling, self._clock)
                self._pools[model] = pool
                if self._closed:
                    pool.close()
            pool.set_backends(
                loads,
                avoided.get(model, ()) if avoided else (),
                screen if model in screened else None,
            )
        for model in self._pools.keys() - serving.keys():
            pool = self._pools[model]
            pool.set_backends((), (), screen if model in screened else None)
            if pool.is_empty():
                del self._pools[model]

    def expire(self) -> None:
        for pool in self._pools.values():
            pool.expire()

    def close(self) -> None:
        """Refuse everything that waits, and whatever comes later."""
        self._closed = True
        for pool in self._pools.values():
            pool.close()
