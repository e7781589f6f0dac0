from __future__ import annotations

import pytest

from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.speeds import Speeds
from gateway.types import Decision, Reason, WorkClass

TOKENS = 2000


class Site:
    def __init__(self, models: dict[str, str]) -> None:
        self.now = 100.0
        self.loads = {id: BackendLoad(id) for id in models}
        self.speeds = Speeds(self.loads, lambda: self.now)
        for id, model in models.items():
            self.speeds.backend_changed(id, model, 500_000.0)

    def lease(self, backend: str) -> Lease:
        lease = Lease(
            self.loads[backend],
            Decision(backend, Reason.LOAD),
            WorkClass.PREFILL,
            TOKENS,
            TOKENS,
            TOKENS / 10_000,
            lambda: self.now,
        )
        self.speeds.dispatched(lease, streamed=True)
        return lease

    def serve(self, backend: str, seconds: float, times: int = 40) -> None:
        """Prompts one after another, each with its first token after so many seconds."""
        for _ in range(times):
            lease = self.lease(backend)
            self.now += seconds
            lease.first_token()
            self.speeds.first_token(lease)
            self.speeds.finished(lease)
            lease.release()
        self.speeds.refresh()

    def rates(self) -> dict[str, float]:
        return {id: load.prefill_rate for id, load in self.loads.items()}


def test_the_one_that_stands_out_has_a_rate_of_its_own_and_its_models_usual_one() -> None:
    site = Site(dict.fromkeys("abc", "m"))
    for _ in range(3):
        for backend, seconds in (("a", 0.25), ("b", 0.26), ("c", 0.75)):
            site.serve(backend, seconds)
    rates = site.rates()
    assert rates["a"] == rates["b"] == pytest.approx(3 * rates["c"], rel=0.2)
    assert {load.usual_rate for load in site.loads.values()} == {rates["a"]}


def test_models_are_not_held_against_each_other() -> None:
    site = Site({"a": "m", "b": "other"})
    site.serve("b", 1.0)
    assert site.rates()["a"] == 10_000.0
    assert site.rates()["b"] < 5_000.0


def test_who_has_served_nothing_is_taken_for_a_usual_one() -> None:
    site = Site(dict.fromkeys("ab", "m"))
    site.serve("a", 0.5)
    assert site.rates()["b"] == site.rates()["a"] < 10_000.0


def test_what_was_broken_off_teaches_nothing() -> None:
    site = Site({"a": "m"})
    for _ in range(40):
        lease = site.lease("a")
        site.now += 1.0
        site.speeds.dropped(lease)
        lease.release()
    site.speeds.refresh()
    assert site.rates() == {"a": 10_000.0}


@pytest.mark.parametrize("model", ["m", "other"])
def test_a_backend_that_comes_back_is_remembered_only_while_it_was_not_removed(model: str) -> None:
    site = Site({"a": "m"})
    site.serve("a", 1.0)
    slow = site.rates()["a"]
    site.speeds.backend_changed("a", "m", 400_000.0)
    site.speeds.refresh()
    assert site.rates()["a"] == pytest.approx(slow, rel=0.05)
    if model == "m":
        site.speeds.backend_removed("a")
    site.speeds.backend_changed("a", model, 400_000.0)
    site.speeds.refresh()
    assert site.rates()["a"] == 10_000.0


def test_leases_of_a_backend_that_was_removed_are_ignored() -> None:
    site = Site({"a": "m"})
    lease = site.lease("a")
    site.speeds.backend_removed("a")
    site.speeds.backend_removed("a")
    for tell in (site.speeds.first_token, site.speeds.finished, site.speeds.dropped):
        tell(lease)
    site.speeds.refresh()
    assert site.rates() == {"a": 10_000.0}
