from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.shared.breaker import LinkState
from gateway.shared.stats import FeedStats
from gateway.telemetry.collector import CONTENT_TYPE, MetricsPage
from gateway.telemetry.families import FAMILIES
from gateway.telemetry.family import Family
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.shared_sources import SharingView
from gateway.telemetry.sources import FeedReading, GateState, Sources
from gateway.types import Outcome, Reason, WorkClass
from tests.telemetry.records import BACKEND, SERVED, refused, routed

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@dataclass
class FakeBreaker:
    state: str = "closed"
    failures: int = 0


@dataclass
class FakeBackend:
    id: str
    state: str
    breaker: FakeBreaker = field(default_factory=FakeBreaker)
    busy: object | None = None


@dataclass
class FakeClassLoad:
    own: int


@dataclass
class FakeReported:
    running: int | None = 3
    waiting: int | None = 2
    kv_use: float | None = 0.75


@dataclass
class FakeLoad:
    id: str
    reported: FakeReported | None = field(default_factory=FakeReported)
    reported_at: float | None = 96.0
    prefill: int = 0
    decode: int = 0
    prefill_rate: float = 9000.0
    step_seconds: float = 0.01

    def of(self, work_class: WorkClass, /) -> FakeClassLoad:
        return FakeClassLoad(self.prefill if work_class is WorkClass.PREFILL else self.decode)


@dataclass
class FakePoolState:
    backends: dict[str, int]
    unplaced: int = 2
    tenants: int = 3


@dataclass
class FakePool:
    model: str
    waiting: int = 0

    def snapshot(self) -> FakePoolState:
        return FakePoolState({BACKEND: self.waiting})

    def depth(self, work_class: WorkClass, /) -> int:
        return self.waiting if work_class is WorkClass.DECODE else 0

    def oldest_wait(self, work_class: WorkClass, /) -> float:
        return self.depth(work_class) * 0.5


@dataclass
class FakeHolding:
    blocks: int = 7
    tokens: float = 448.0
    capacity_tokens: float = 16_000.0


@dataclass
class FakeErrors:
    count: int = 4
    signed: float = 0.5
    absolute: float = 1.5


@dataclass
class FakeIndex:
    nodes: int = 3
    evicted_blocks: int = 5
    bookings: int = 2
    backends: dict[str, FakeHolding] = field(default_factory=lambda: {BACKEND: FakeHolding()})


@dataclass
class FakeFeed:
    name: str = "file:backends.yaml"
    failures: int = 2


@dataclass
class FakeUse:
    requests_total: int = 7
    tokens_charged: int = 900
    refused: dict[str, int] = field(default_factory=lambda: {"requests": 2, "tokens": 1})


@dataclass
class FakeKeys:
    failures: dict[str, int] = field(default_factory=lambda: {"missing": 3})
    uses: dict[str, FakeUse] = field(default_factory=lambda: {"team": FakeUse()})


@dataclass
class FakeLimits:
    local: bool = True
    replicas: int = 4
    decided_shared: int = 9
    decided_alone: int = 2


@dataclass
class FakeSharedIndex:
    learnt: int = 1
    applied: int = 2
    gaps: int = 3
    stale: int = 4
    unknown: int = 5


@dataclass
class FakeAllotments:
    guessed: int = 2


def sharing() -> SharingView:
    return SharingView(
        LinkState(True, "", 0.0),
        FeedStats(dropped=6, snapshot_age=7.0),
        False,
        FakeSharedIndex(),
        FakeLimits(),
        FakeAllotments(),
    )


class Site:
    """A page over fakes of all other parts."""

    def __init__(self) -> None:
        self.metrics = Metrics({SERVED}.__contains__)
        self.metrics.backend_changed(BACKEND, "healthy")
        self.backends = [FakeBackend(BACKEND, "healthy")]
        self.loads = [FakeLoad(BACKEND, prefill=1, decode=4)]
        self.pools = [FakePool(SERVED, waiting=6), FakePool("")]
        self.index = FakeIndex()
        sources = Sources(
            version="1.2.3",
            policy=lambda: "prefix_affinity",
            clock=lambda: 100.0,
            backends=self.backends,
            loads=self.loads,
            pools=self.pools,
            gates=lambda: {BACKEND: GateState(True, 0.75)},
            feeds=lambda: [FeedReading(FakeFeed(), 3, 1, 4.5)],
            errors=lambda: {"output_tokens": FakeErrors()},
            bytes_per_token=lambda model: 3.5,
            index=lambda: self.index,
            keys=FakeKeys(),
            overrides=lambda: {"shared": 2},
            sharing=sharing,
        )
        self.page = MetricsPage(self.metrics, sources)

    def families(self) -> dict[str, Metric]:
        text = self.page.read().render().decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float:
        [found] = [
            sample.value
            for family in self.families().values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        return found


def busy_site() -> Site:
    """Every metric has at least one sample."""
    site = Site()
    for record in (
        routed(reported_prompt_tokens=900, reported_cached_tokens=700),
        routed(keyed=False, outcome=Outcome.CANCELLED, disconnect_phase="answer"),
        routed(reason=Reason.SPILL, spill="queue", placement="local", placement_reason="short"),
        refused(),
    ):
        site.metrics.observe(record)
    site.metrics.upstream_error(BACKEND, "reset")
    site.metrics.refused("slow_head")
    site.metrics.fallback("busy")
    site.metrics.wasted_prefill("expired")
    site.metrics.orphan("unclear")
    return site


def test_the_page_has_exactly_the_declared_families_with_their_labels() -> None:
    page = busy_site().families()
    ours = {name: family for name, family in page.items() if name.startswith("prefixgate_")}
    assert ours.keys() == {family.name.removesuffix("_total") for family in FAMILIES}
    for family in FAMILIES:
        shown = ours[family.name.removesuffix("_total")]
        assert shown.type == family.kind
        assert shown.documentation == family.help
        assert shown.samples, family.name
        for sample in shown.samples:
            assert sample.labels.keys() - {"le"} == set(family.labels), sample


def test_process_and_garbage_collector_are_on_the_page() -> None:
    gc.collect()
    page = Site().families()
    assert "process_resident_memory_bytes" in page
    assert "python_gc_collections" in page


def test_the_content_type_is_that_of_the_text_format() -> None:
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
    assert Site().page.read().render().startswith(b"# HELP ")


def test_counters_reach_the_page() -> None:
    site = busy_site()
    ok = {"model": SERVED, "dialect": "openai-chat", "outcome": "ok"}
    assert site.value("prefixgate_requests_total", **ok) == 2
    site.metrics.observe(routed())
    assert site.value("prefixgate_requests_total", **ok) == 3
    assert site.value("prefixgate_matched_tokens_total", model=SERVED) == 3200
    assert site.value("prefixgate_decisions_total", reason="prefix") == 3
    assert site.value("prefixgate_decisions_total", reason="spill") == 1
    assert site.value("prefixgate_spills_total", cause="queue") == 1
    refusal = {"class": "prefill", "reason": "queue_full"}
    assert site.value("prefixgate_queue_refusals_total", **refusal) == 1


def test_histograms_reach_the_page() -> None:
    site = busy_site()
    decode = {"class": "decode"}
    assert site.value("prefixgate_ttft_seconds_count", **decode) == 3
    assert site.value("prefixgate_ttft_seconds_sum", **decode) == pytest.approx(0.36)
    assert site.value("prefixgate_ttft_seconds_bucket", le="0.1", **decode) == 0
    assert site.value("prefixgate_ttft_seconds_bucket", le="0.15", **decode) == 3
    assert site.value("prefixgate_ttft_seconds_bucket", le="+Inf", **decode) == 3


def test_errors_are_told_apart_by_sign() -> None:
    site = busy_site()
    name, estimate = "prefixgate_estimate_errors_total", "output_tokens"
    assert site.value("prefixgate_estimates_total", estimate=estimate) == 4
    assert site.value(name, estimate=estimate, direction="over") == 1.0
    assert site.value(name, estimate=estimate, direction="under") == 0.5


def test_what_was_learnt_is_shown_for_models_that_are_served() -> None:
    site = busy_site()
    site.metrics.observe(routed(model="nobody's"))
    assert site.value("prefixgate_bytes_per_token", model=SERVED) == 3.5
    [samples] = [
        family.samples
        for name, family in site.families().items()
        if name == "prefixgate_bytes_per_token"
    ]
    assert len(samples) == 1


def test_waits_are_told_apart_by_priority() -> None:
    site = busy_site()
    name, decode = "prefixgate_queue_wait_seconds_count", {"class": "decode"}
    assert site.value(name, priority="high", **decode) == 3
    assert site.value(name, priority="low", **decode) == 0


def test_the_state_of_other_parts_is_read_at_each_scrape() -> None:
    site = Site()
    assert site.value("prefixgate_in_flight", backend=BACKEND, **{"class": "decode"}) == 4
    assert site.value("prefixgate_queue_depth", model=SERVED, **{"class": "decode"}) == 6
    assert site.value("prefixgate_queue_depth", model="none", **{"class": "decode"}) == 0
    assert site.value("prefixgate_queue_held", backend=BACKEND) == 6
    assert site.value("prefixgate_queue_unplaced", model=SERVED) == 2
    assert site.value("prefixgate_queue_tenants", model=SERVED) == 3
    assert site.value("prefixgate_gate_closed", backend=BACKEND) == 1
    assert site.value("prefixgate_pending_prefill_seconds", backend=BACKEND) == 0.75
    assert site.value("prefixgate_backend_up", backend=BACKEND) == 1
    feed = "file:backends.yaml"
    assert site.value("prefixgate_discovery_entries", source=feed) == 3
    assert site.value("prefixgate_discovery_unreachable", source=feed) == 1
    assert site.value("prefixgate_discovery_age_seconds", source=feed) == 4.5
    assert site.value("prefixgate_discovery_failures_total", source=feed) == 2
    assert site.value("prefixgate_index_tokens", backend=BACKEND) == 448
    assert site.value("prefixgate_policy_info", policy="prefix_affinity") == 1
    # X03: gauges go back to zero without any further request
    site.loads[0].decode = 0
    site.pools[0].waiting = 0
    site.backends[0].state = "ejected"
    site.backends[0].breaker = FakeBreaker("open", 7)
    site.backends[0].busy = object()
    site.index = FakeIndex(nodes=1, backends={})
    assert site.value("prefixgate_in_flight", backend=BACKEND, **{"class": "decode"}) == 0
    assert site.value("prefixgate_queue_depth", model=SERVED, **{"class": "decode"}) == 0
    assert site.value("prefixgate_backend_up", backend=BACKEND) == 0
    assert site.value("prefixgate_backend_state", backend=BACKEND, state="ejected") == 1
    assert site.value("prefixgate_backend_breaker_state", backend=BACKEND, state="open") == 1
    assert site.value("prefixgate_backend_breaker_failures", backend=BACKEND) == 7
    assert site.value("prefixgate_backend_busy", backend=BACKEND) == 1
    assert site.value("prefixgate_index_nodes") == 1
    assert not site.families()["prefixgate_index_blocks"].samples


def test_X01_a_flood_of_invented_models_adds_a_constant() -> None:
    site = busy_site()
    site.metrics.observe(refused(model="first"))
    before = len(site.page.read().render())
    for number in range(2000):
        site.metrics.observe(refused(model=f"m{number}" * 1000))
    assert len(site.page.read().render()) - before < 500


def test_two_gateways_can_live_in_one_process() -> None:
    one, two = busy_site(), Site()
    assert one.value("prefixgate_decisions_total", reason="prefix") == 2
    assert two.value("prefixgate_decisions_total", reason="prefix") == 0


def test_a_snapshot_is_of_one_moment() -> None:
    site = Site()
    snapshot = site.page.read()
    text = snapshot.render()
    site.metrics.observe(routed())
    site.metrics.redials += 1
    assert snapshot.render() == text != site.page.read().render()


# docs/metrics.md


def documented() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| `(prefixgate_\w+)` \| (\w+) \|([^|]*)\| \S.* \|$", line)
        if row:
            yield row[1], row[2], tuple(re.findall(r"`(\w+)`", row[3]))


def test_the_documented_metrics_are_the_declared_ones() -> None:
    def row(family: Family) -> tuple[str, str, tuple[str, ...]]:
        return family.name, family.kind, family.labels

    assert list(documented()) == [row(family) for family in FAMILIES]


def test_no_page_speaks_of_a_metric_that_does_not_exist() -> None:
    names = {family.name for family in FAMILIES}
    spoken_of = set(re.findall(r"\bprefixgate_\w*[a-z]\b", DOCS.read_text(encoding="utf-8")))
    assert spoken_of == names
