import pytest

from gateway.types import Reason
from policies.copies import TRACKED, Copies
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams
from tests.policies.views import View, chain, request


def test_what_is_paid_adds_up_and_fades() -> None:
    copies = Copies()
    assert copies.paid(b"p", 0.0) == 0.0
    copies.wait(b"p", 0.0, 1.0)
    copies.wait(b"p", 0.0, 2.0)
    assert copies.paid(b"p", 0.0) == 3.0
    assert copies.paid(b"p", 60.0) == pytest.approx(3.0 / 2.71828, rel=1e-3)
    assert copies.paid(b"other", 0.0) == 0.0


def test_a_copy_begins_a_new_account() -> None:
    copies = Copies()
    copies.wait(b"p", 0.0, 1.0)
    copies.copied(b"p")
    copies.copied(b"never seen")
    assert copies.paid(b"p", 0.0) == 0.0


def test_those_not_asked_for_are_forgotten_first() -> None:
    copies = Copies()
    for number in range(TRACKED):
        copies.wait(b"%d" % number, 0.0, 1.0)
    copies.wait(b"0", 0.0, 1.0)
    copies.wait(b"new", 0.0, 1.0)
    assert copies.paid(b"0", 0.0) == 2.0
    assert copies.paid(b"1", 0.0) == 0.0


def test_waits_too_short_to_spill_for_make_a_copy_in_the_end() -> None:
    """A waits 0.2 s each time, a copy at B costs 0.4 s: two or three waits pay for it."""
    policy = PrefixAffinity(PrefixAffinityParams(theta_max=0.0))
    candidates = [View("a", pending_tokens=2000.0), View("b")]
    asked = request(tokens=4000, links=chain(*map(str, range(40))), held={"a": 4000})
    reasons = []
    for _ in range(5):
        decision = policy.choose(asked, candidates)
        [at_a, at_b] = policy.explain(asked, candidates)
        assert decision.scores == pytest.approx((at_a["total"], at_b["total"]))
        assert at_a["copy"] == 0.0
        assert at_b["copy"] <= 0.0
        reasons.append(decision.reason)
        policy.placed(asked, next(view for view in candidates if view.id == decision.backend))
    first = reasons.index(Reason.COPY)
    assert 1 <= first <= 3
    assert reasons[:first] == [Reason.PREFIX] * first
    assert reasons[first + 1] is Reason.PREFIX


def test_where_there_is_nothing_to_wait_for_no_copy_is_made() -> None:
    policy = PrefixAffinity(PrefixAffinityParams())
    candidates = [View("a"), View("b")]
    asked = request(tokens=4000, links=chain(*map(str, range(40))), held={"a": 4000})
    for _ in range(100):
        assert policy.choose(asked, candidates).reason is Reason.PREFIX
        policy.placed(asked, candidates[0])
