"""Who has had how much service: fairness between tenants by deficit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from gateway.config import Tenants as Settings

MAX_DEBT = 60.0
"""Quanta times weight of service that a tenant can be in debt with. It may get there at backends
that the others had no use for, and must not starve elsewhere for it."""


class Tenants:
    """Deficit round robin in seconds of service, as D2LPM does it: cached tokens cost next to
    nothing, so who reuses prefixes is served more often, not less.

    A tenant with credit may go before those without; when none of those whose turn it could be has
    any, each that waits gets a quantum times its weight.

    Bound: the service, over its weight, of two tenants that both always have requests waiting in
    the same line differs by at most two quanta and two of their largest requests (of at most
    `MAX_DEBT` quanta).

    Credit is not saved up while a tenant has nothing waiting, nor does service that nobody else
    waited for count as a debt.
    """

    __slots__ = ("_credit", "_waiting", "settings")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._credit: OrderedDict[str, float] = OrderedDict()
        self._waiting: dict[str, int] = {}

    def __len__(self) -> int:
        """Tenants that are tracked."""
        return len(self._credit)

    @property
    def waiting(self) -> int:
        """Tenants that have requests waiting."""
        return len(self._waiting)

    def joins(self, tenant: str) -> None:
        """A request of the tenant begins to wait."""
        waiting = self._waiting
        if tenant not in waiting:
            best = max((self._credit[other] for other in waiting), default=0.0)
            had = self._credit.get(tenant, best)
            self._remember(tenant, min(had, best) if waiting else had)
            waiting[tenant] = 0
            self._forget()
        waiting[tenant] += 1

    def leaves(self, tenant: str) -> None:
        """A request of the tenant waits no longer."""
        left = self._waiting[tenant] - 1
        if left:
            self._waiting[tenant] = left
        else:
            del self._waiting[tenant]

    def eligible(self, tenants: Collection[str]) -> list[str]:
        """Of several tenants with requests waiting, those whose turn it is; never none."""
        credit = self._credit
        while not (found := [tenant for tenant in tenants if credit[tenant] > 0.0]):
            # As many quanta at once as the nearest of them needs.
            rounds = 1 + min(int(-credit[tenant] / self._quantum(tenant)) for tenant in tenants)
            for tenant in self._waiting:
                quantum = self._quantum(tenant)
                had = credit[tenant]
                credit[tenant] = max(had, min(had + rounds * quantum, quantum))
        return found

    def counts(self, tenant: str) -> bool:
        """Whether service to a tenant makes a difference: somebody waits, or it has credit to pay
        with, or debt to be forgiven."""
        return bool(self._waiting or self._credit.get(tenant))

    def charge(self, tenant: str, seconds: float) -> bool:
        """Count service.

        Returns:
            Whether others waited for it. When not, it costs what credit there is, and is settled.
        """
        contested = len(self._waiting) > (tenant in self._waiting)
        left = self._credit.get(tenant, 0.0) - seconds
        self._remember(tenant, left if contested else max(left, 0.0))
        self._forget()
        return contested

    def settle(self, tenant: str, seconds: float) -> None:
        """Count what service that others waited for took more than was charged, or (negative)
        less. Of a tenant that is no longer tracked there is nothing to settle."""
        if tenant in self._credit:
            self._credit[tenant] -= seconds

    def _quantum(self, tenant: str) -> float:
        return self.settings.quantum * self.settings.weights.get(tenant, 1.0)

    def _remember(self, tenant: str, credit: float) -> None:
        self._credit[tenant] = max(credit, -MAX_DEBT * self._quantum(tenant))
        self._credit.move_to_end(tenant)

    def _forget(self) -> None:
        credit, waiting = self._credit, self._waiting
        while len(credit) > self.settings.max_tracked:
            idle = next((tenant for tenant in credit if tenant not in waiting), None)
            if idle is None:
                return
            del credit[idle]
