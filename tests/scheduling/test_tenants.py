import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Tenants as Settings
from gateway.scheduling.tenants import MAX_DEBT, Tenants

SIZES = st.lists(st.floats(0.01, 5.0), min_size=400, max_size=400)


def serve(tenants: Tenants, names: list[str], sizes: list[float]) -> dict[str, float]:
    """Service of tenants that always have something waiting, the first by name going first."""
    for name in names:
        tenants.joins(name)
    served = dict.fromkeys(names, 0.0)
    for size in sizes:
        name = min(tenants.eligible(names))
        tenants.charge(name, size)
        served[name] += size
    return served


@given(sizes=SIZES, quantum=st.sampled_from([0.1, 1.0, 3.0]), weight=st.sampled_from([1.0, 4.0]))
def test_two_that_always_wait_get_the_same_service(
    sizes: list[float], quantum: float, weight: float
) -> None:
    """The stated bound: two quanta and two of the largest requests, over the weights."""
    tenants = Tenants(Settings(quantum=quantum, weights={"b": weight}))
    served = serve(tenants, ["a", "b"], sizes)
    assert abs(served["a"] - served["b"] / weight) <= 2 * quantum + 2 * max(sizes)


@given(sizes=SIZES)
def test_settled_service_is_what_counts(sizes: list[float]) -> None:
    """One tenant's requests are charged three times what they take, the other's a third."""
    tenants = Tenants(Settings())
    tenants.joins("a")
    tenants.joins("b")
    served = {"a": 0.0, "b": 0.0}
    for size in sizes:
        name = min(tenants.eligible(("a", "b")))
        charged = size * (3.0 if name == "a" else 1 / 3)
        assert tenants.charge(name, charged)
        tenants.settle(name, size - charged)
        served[name] += size
    assert abs(served["a"] - served["b"]) <= 2 + 2 * 3 * max(sizes)


def test_service_that_nobody_waits_for_is_no_debt() -> None:
    tenants = Tenants(Settings())
    for _ in range(100):
        assert not tenants.charge("alone", 10.0)
    tenants.joins("alone")
    tenants.joins("new")
    assert set(tenants.eligible(("alone", "new"))) == {"alone", "new"}


def test_credit_is_not_saved_up_while_idle() -> None:
    tenants = Tenants(Settings())
    serve(tenants, ["busy", "other"], [1.0] * 100)
    tenants.leaves("other")
    for _ in range(30):
        tenants.charge("busy", 1.0)
        tenants.eligible(("busy",))
    served = serve(tenants, ["busy", "other"], [1.0] * 40)
    assert abs(served["busy"] - served["other"]) <= 4


def test_a_debt_made_elsewhere_is_bounded() -> None:
    """Served alone at one backend while others wait at another, a tenant must not starve there."""
    tenants = Tenants(Settings())
    tenants.joins("a")
    tenants.joins("b")
    tenants.charge("a", 10_000.0)
    turns = 0
    while tenants.eligible(("a", "b")) == ["b"]:
        tenants.charge("b", 1.0)
        turns += 1
    assert turns == pytest.approx(MAX_DEBT, abs=2)


def test_somebody_is_always_eligible() -> None:
    tenants = Tenants(Settings(quantum=0.001))
    for name in "abc":
        tenants.joins(name)
        tenants.charge(name, 1e6)
    assert tenants.eligible("abc")


def test_Q10_fresh_names_leave_no_trace() -> None:
    tenants = Tenants(Settings(max_tracked=10))
    for number in range(1000):
        tenants.joins(f"fresh {number}")
        tenants.charge(f"fresh {number}", 1.0)
        tenants.leaves(f"fresh {number}")
        assert len(tenants) <= 10
    assert tenants.waiting == 0


def test_who_waits_is_not_forgotten() -> None:
    tenants = Tenants(Settings(max_tracked=1))
    for name in "ab":
        tenants.joins(name)
    tenants.charge("c", 1.0)
    assert tenants.eligible(("a", "b"))


def test_what_is_settled_after_a_tenant_was_forgotten_is_nothing() -> None:
    tenants = Tenants(Settings(max_tracked=1))
    tenants.charge("a", 1.0)
    tenants.charge("b", 1.0)
    tenants.settle("a", 5.0)
    assert len(tenants) == 1
