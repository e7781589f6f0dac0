from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from gateway.disagg.decider import Placement
from gateway.disagg.links import Links
from gateway.disagg.placing import HOSTED_LEAST, MISSED, TURNING, HandoverPlacing
from gateway.types import Decision, Role
from policies.base import Candidate, RouteRequest
from policies.prefix_affinity import PrefixAffinityParams
from tests.policies.views import View, request

KV_BYTES = 131_072.0
FAST = 400e9 / 8
ROLES: Mapping[str, Role] = {"p": Role.PREFILL, "d1": Role.DECODE, "d2": Role.DECODE}


class Engines:
    """All work with each other, but for what is set."""

    def __init__(self, roles: Mapping[str, Role], bandwidth: float, pace: float | None) -> None:
        self.pace = pace
        self.views: list[View] = []
        self.needy: set[str] = set()
        self.overlapping: set[str] = set()
        self.apart: set[tuple[str, str]] = set()
        self._roles = roles
        self._links = Links(KV_BYTES, fixed=bandwidth)

    def role(self, id: str) -> Role:
        return self._roles[id]

    def serves_alone(self, id: str) -> bool:
        return id not in self.needy

    def paired(self, prefill: str, decode: str, model: str) -> bool:
        return (prefill, decode) not in self.apart

    def overlaps(self, decode: str) -> bool:
        return decode in self.overlapping

    def landings(self, request: RouteRequest) -> list[View]:
        return [view for view in self.views if self._roles[view.id] is not Role.PREFILL]

    def links(self, model: str) -> Links:
        return self._links


class Placing(HandoverPlacing):
    """Among the engines that it is asked about."""

    engines: Engines

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        self.engines.views = list(candidates)
        return super().choose(request, candidates)

    def paired_with(self, request: RouteRequest, chosen: View, views: list[View]) -> Placement:
        self.engines.views = views
        return self.pair(request, chosen)


def placing(
    roles: Mapping[str, Role] = ROLES, bandwidth: float = FAST, pace: float | None = 0.1
) -> Placing:
    return Placing(PrefixAffinityParams(), Engines(roles, bandwidth, pace))


def fleet() -> list[View]:
    return [View("p"), View("d1"), View("d2")]


def busy(policy: Placing, tokens: int = 1000) -> Placing:
    """After five minutes in which short prompts came to the decode engines and long ones to the
    other."""
    for second in range(300):
        for decode in ("d1", "d2"):
            policy.placed(request(tokens=tokens, now=float(second)), View(decode))
        if second % 10 == 0:
            policy.placed(request(tokens=30_000, now=float(second)), View("p"))
    return policy


def test_where_short_prompts_keep_coming_long_ones_are_handed_over() -> None:
    """The control is a fleet that nothing has come to yet: there it makes no difference."""
    policy, engines = busy(placing()), fleet()
    short, long = request(tokens=1500, now=300.0), request(tokens=40_000, now=300.0)
    assert policy.choose(long, engines).backend == "p"
    assert policy.paired_with(long, engines[0], engines).is_remote
    engines[0].pending_tokens = 3000.0
    assert policy.choose(short, engines).backend in ("d1", "d2")
    assert policy.choose(long, engines).backend == "p"
    engines[0].pending_tokens = 0.0
    costs = placing().choose(long, engines).scores
    assert min(costs) == pytest.approx(costs[1])


def test_what_waits_changes_sides_only_for_a_clear_gain() -> None:
    """Without it a single look that finds an engine idle for a moment would decide."""
    policy, engines = busy(placing()), fleet()
    new = request(tokens=20_000, now=300.0)
    for line in ("p", "d1"):
        waiting = msgspec.structs.replace(new, line=line)
        other = ["d1", "d2"] if line == "p" else ["p"]
        more = dict(zip(ROLES, policy.choose(waiting, engines).scores, strict=True))
        for id, cost in zip(ROLES, policy.choose(new, engines).scores, strict=True):
            assert more[id] == pytest.approx(cost + (TURNING if id in other else 0.0))
        assert {each["turning"] for each in policy.explain(waiting, engines)} == {0.0, TURNING}


def test_who_is_late_anyway_leaves_engines_to_those_who_are_not() -> None:
    """It would have its first token sooner at a decode engine, where those who come would be late
    for it."""
    policy, engines = busy(placing()), fleet()
    engines[0].held_seconds = 40.0
    new = request(tokens=30_000, now=300.0)
    assert policy.choose(new, engines).backend in ("d1", "d2")
    assert policy.choose(msgspec.structs.replace(new, deadline=301.0), engines).backend == "p"


def test_a_long_conversation_with_a_short_rest_stays_where_it_is() -> None:
    asked = request(tokens=40_000, held={"d2": 39_000}, now=300.0)
    assert busy(placing()).choose(asked, fleet()).backend == "d2"


def test_over_a_slow_network_nothing_is_handed_over() -> None:
    asked = request(tokens=40_000, now=300.0)
    for bandwidth, remote in ((FAST, True), (1e8, False)):
        placement = busy(placing(bandwidth=bandwidth)).paired_with(asked, View("p"), fleet())
        assert placement.is_remote is remote


def test_the_decode_engine_is_the_one_that_holds_most_unless_it_is_full() -> None:
    policy = busy(placing(bandwidth=25e9 / 8))
    asked = request(tokens=40_000, held={"d2": 10_000}, now=300.0)
    assert policy.paired_with(asked, View("p"), fleet()).decode == "d2"
    full = View("d2", context_tokens=490_000, in_flight=40)
    assert policy.paired_with(asked, View("p"), [View("d1"), full]).decode == "d1"


def test_what_a_decode_engine_computes_is_never_handed_over() -> None:
    asked = request(tokens=40_000, now=300.0)
    assert busy(placing()).paired_with(asked, View("d1"), fleet()).decode == "d1"


def test_a_prefill_engine_serves_all_of_a_request_when_no_other_is_left() -> None:
    asked = request(tokens=4_000)
    only = View("p")
    placement = placing().paired_with(asked, only, [only])
    assert (placement.prefill, placement.decode) == ("p", "p")
    assert placing().choose(asked, [only]).backend == "p"


def test_a_busy_prefill_engine_is_no_place_for_an_answer() -> None:
    asked = request(tokens=2_000, output=300, now=300.0)
    idle, crowded = placing(), placing()
    for second in range(300):
        crowded.placed(request(tokens=6_000, now=float(second)), View("p"))
    hosting = [policy.paired_with(asked, View("p"), []).terms.hosting for policy in (idle, crowded)]
    assert hosting[0] == HOSTED_LEAST
    assert hosting[1] > HOSTED_LEAST + 3.0


def test_unified_engines_are_placed_as_ever() -> None:
    roles = {"a": Role.UNIFIED, "b": Role.UNIFIED}
    asked = request(tokens=6000, held={"b": 5500})
    policy = placing(roles)
    assert policy.choose(asked, [View("a"), View("b")]).backend == "b"
    assert not policy.paired_with(asked, View("b"), [View("a"), View("b")]).is_remote


def test_explains_every_term_of_what_it_would_do() -> None:
    policy, engines = busy(placing()), fleet()
    asked = request(tokens=40_000, held={"d1": 8_000}, now=300.0)
    scores = policy.choose(asked, engines).scores
    told = policy.explain(asked, engines)
    assert [terms["total"] for terms in told] == pytest.approx(list(scores))
    assert told[1]["matched_tokens"] == 8_000
    for terms in told:
        parts = [terms[name] for name in terms if name not in ("total", "matched_tokens")]
        assert terms["total"] == pytest.approx(sum(parts))
    assert told[0]["transfer"] > 0.0 == told[1]["transfer"]


def test_what_no_handover_carries_is_served_by_one_engine() -> None:
    policy, engines = busy(placing()), fleet()
    asked = request(tokens=40_000, now=300.0)
    assert policy.paired_with(asked, engines[0], engines).is_remote
    alone = msgspec.structs.replace(asked, alone=True)
    assert not policy.paired_with(alone, engines[0], engines).is_remote


def test_engines_that_are_no_pair_are_not_paired() -> None:
    policy, engines = busy(placing()), fleet()
    policy.engines.apart = {("p", "d1")}
    asked = request(tokens=40_000, held={"d1": 10_000}, now=300.0)
    assert policy.paired_with(asked, engines[0], engines).decode == "d2"
    policy.engines.apart.add(("p", "d2"))
    assert not policy.paired_with(asked, engines[0], engines).is_remote
    assert policy.pair(asked, engines[0], tried=("d1", "d2")).decode == "p"


def test_a_prefill_engine_that_serves_nothing_alone_hands_over_what_it_gets() -> None:
    """The control is one that does: there a short prompt is not worth a handover."""
    asked = request(tokens=100, output=10)
    for needy, remote in ((set(), False), ({"p"}, True)):
        policy = placing(bandwidth=1e6)
        policy.engines.needy = needy
        assert policy.paired_with(asked, View("p"), fleet()).is_remote is remote


def test_what_replicas_have_sent_counts_as_what_was_sent_from_here() -> None:
    here, there = placing(), placing()
    asked = request(tokens=2_000, output=300, now=300.0)
    for second in range(300):
        here.placed(request(tokens=6_000, now=float(second)), View("p"))
        there.placed_elsewhere(here.note(), View("p"), float(second))
    terms = [policy.paired_with(asked, View("p"), []).terms for policy in (here, there)]
    assert terms[0].hosting == terms[1].hosting > HOSTED_LEAST + 3.0
    assert terms[0].blocking == terms[1].blocking


def test_a_stream_is_worth_more_where_prompts_can_be_computed_elsewhere() -> None:
    policy, asked = placing(), request(tokens=4000)
    alone = [View("d1", decoding=1, spoilt=1.0), View("d2")]
    terms = policy.explain(asked, [View("p"), *alone])
    assert [each["streams"] for each in terms] == [0.0, MISSED, 0.0]
    assert policy.explain(asked, alone)[0]["streams"] == PrefixAffinityParams().spoil
    off = Placing(PrefixAffinityParams(spoil=0.0), policy.engines)
    assert off.explain(asked, [View("p"), *alone])[1]["streams"] == 0.0


def test_what_is_sent_during_the_prefill_is_taken_off_the_transfer() -> None:
    policy, asked = placing(bandwidth=1e9), request(tokens=10_000, now=300.0)
    policy.engines.needy = {"p"}
    whole = policy.paired_with(asked, View("p"), [View("d1")]).terms.transfer
    policy.engines.overlapping = {"d1"}
    assert policy.pair(asked, View("p")).terms.transfer < 0.1 * whole
    assert policy.paired_with(asked, View("p"), [View("d2")]).terms.transfer == whole


def test_a_short_prompt_is_not_handed_over_for_the_sake_of_a_few_milliseconds() -> None:
    """The control is a line in which it would wait for much longer."""
    policy, engines = busy(placing()), fleet()
    asked = request(tokens=10, now=300.0)
    for pending, chosen in ((200.0, {"d1", "d2"}), (20_000.0, {"p"})):
        for decode in engines[1:]:
            decode.pending_tokens = pending
        assert policy.choose(asked, engines).backend in chosen
