from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from gateway.disagg.decider import (
    LOOKED_AT,
    Placement,
    Prices,
    landing_sites,
    local_placement,
    remote_placement,
)
from gateway.disagg.links import Links
from policies.base import RouteRequest
from tests.policies.views import View, request

KV_BYTES = 131_072.0
GBPS = 1e9 / 8


def links(gbps: float = 100.0) -> Links:
    return Links(KV_BYTES, fixed=gbps * GBPS)


class Verdict(NamedTuple):
    """The best of each kind."""

    local: Placement | None
    remote: Placement | None

    @property
    def chosen(self) -> Placement:
        return min(filter(None, self), key=_total)


def _total(placement: Placement) -> float:
    return placement.terms.total


def verdict(
    asked: RouteRequest,
    prefill: list[View],
    decode: list[View],
    network: Links | None = None,
    **prices: Any,
) -> Verdict:
    network = network or links()
    prices = {"missed": 20.0} | prices

    def transfer(prefill: str, decode: str, tokens: float, during: float) -> float:
        return network.seconds(prefill, decode, tokens)

    costs = Prices(**prices)
    sites = landing_sites(asked, decode, transfer, costs)
    handed = (remote_placement(asked, each, sites, transfer, costs) for each in prefill)
    return Verdict(
        min((local_placement(asked, each, costs) for each in decode), key=_total, default=None),
        min(filter(None, handed), key=_total, default=None),
    )


def chosen(*arguments: Any, **prices: Any) -> tuple[str, str]:
    placement = verdict(*arguments, **prices).chosen
    return placement.prefill, placement.decode


def test_a_short_rest_is_computed_where_the_prefix_is() -> None:
    asked = request(tokens=8000, held={"d2": 7500})
    decode = [View("d1"), View("d2", decoding=2, in_flight=2)]
    assert chosen(asked, [View("p")], decode) == ("d2", "d2")


def test_a_long_prompt_goes_to_a_prefill_engine_when_those_who_come_would_wait() -> None:
    asked = request(tokens=30_000)
    hurried = {"d": ((0.5, 0.5 * 2.0),)}
    assert chosen(asked, [View("p")], [View("d")]) == ("d", "d")
    assert chosen(asked, [View("p")], [View("d")], blocking=hurried) == ("p", "d")


def test_streams_that_would_miss_their_pace_send_it_away() -> None:
    asked = request(tokens=4000)
    assert chosen(asked, [View("p")], [View("d", spoilt=3.0)]) == ("p", "d")
    assert chosen(asked, [View("p")], [View("d", spoilt=3.0)], spoil=0.0) == ("d", "d")


def test_a_slow_network_or_a_long_queue_keeps_it_where_it_is() -> None:
    asked = request(tokens=8000)
    busy = [View("d", pending_tokens=15_000)]
    assert chosen(asked, [View("p")], busy, links(400)) == ("d", "d"), "its last step waits there"
    spoilt = [View("d", spoilt=0.5)]
    assert chosen(asked, [View("p")], spoilt, links(100)) == ("p", "d")
    assert chosen(asked, [View("p")], spoilt, links(1)) == ("d", "d")
    assert chosen(asked, [View("p", pending_tokens=50_000)], spoilt) == ("d", "d")


def test_only_what_the_decode_engine_lacks_is_moved() -> None:
    asked = request(tokens=20_000, held={"d1": 16_000, "p": 16_000})
    found = verdict(asked, [View("p")], [View("d1"), View("d2")], links(10)).remote
    assert found is not None
    assert found.decode == "d1"
    assert found.terms.transfer == pytest.approx(0.005 + 4000 * KV_BYTES / (10 * GBPS))


def test_the_prefill_engine_that_holds_the_prefix_computes_the_rest() -> None:
    asked = request(tokens=20_000, held={"p2": 16_000})
    found = verdict(asked, [View("p1"), View("p2")], [View("d")]).remote
    assert found is not None
    assert found.prefill == "p2"


def test_a_decode_engine_without_memory_is_avoided() -> None:
    asked = request(tokens=10_000, held={"full": 9_000})
    full = View("full", context_tokens=499_000, in_flight=30)
    assert chosen(asked, [View("p")], [full, View("d")])[1] == "d"


def test_nothing_left_of_one_kind() -> None:
    asked = request(tokens=4000)
    assert chosen(asked, [], [View("d")]) == ("d", "d")


def test_an_engine_is_not_paired_with_itself() -> None:
    asked = request(tokens=4000)
    unified = [View("u1"), View("u2")]
    found = verdict(asked, unified, unified).remote
    assert found is not None
    assert found.prefill != found.decode


def test_terms_add_up() -> None:
    asked = request(tokens=30_000, output=200)
    decode = [View("d", decoding=9, in_flight=9, context_tokens=490_000, spoilt=1.0)]
    prices = {"theta": 2.0, "eta": 0.1, "blocking": {"d": ((0.1, 0.1),), "p": ((0.2, 0.9),)}}
    found = verdict(asked, [View("p", pending_tokens=900)], decode, **prices)
    for placement in (found.local, found.remote):
        assert placement is not None
        terms = placement.terms
        parts = [getattr(terms, name) for name in terms.__struct_fields__]
        assert all(part >= 0.0 for part in parts)
        assert terms.total == pytest.approx(sum(parts))


def test_a_long_prompt_leaves_a_line_in_which_it_would_be_late() -> None:
    """The control counts seconds alone: there it stays, rather than to make others late."""
    asked, hurried = request(tokens=20_000), {"d": ((0.8, 0.8 * 1.8),)}
    queue, decode = [View("p", pending_tokens=55_000)], [View("d")]
    assert chosen(asked, queue, decode, blocking=hurried, missed=20.0) == ("d", "d")
    found = verdict(asked, queue, decode, blocking=hurried, missed=20.0)
    assert found.local is not None
    assert found.remote is not None
    assert found.local.terms.late == 0.0 < found.remote.terms.late < 20.0
    without = found.remote.terms.total - found.remote.terms.late
    assert without < found.local.terms.total


def test_work_has_its_price_and_not_the_time_that_streams_take_of_it() -> None:
    asked = request(tokens=8000)
    alone, beside = View("d"), View("d", decoding=30, context_tokens=300_000)
    prices = [verdict(asked, [], [each], theta=2.0).local.terms for each in (alone, beside)]
    assert prices[0].prefill < prices[1].prefill
    assert prices[0].price == pytest.approx(prices[1].price)


def test_of_many_decode_engines_the_best_are_looked_at() -> None:
    asked = request(tokens=10_000, held={"d37": 9_000})
    decode = [View(f"d{number}", spoilt=5.0) for number in range(64)]
    assert len(decode) > LOOKED_AT
    found = verdict(asked, [View("p")], decode, links(10)).remote
    assert found is not None
    assert found.decode == "d37"
