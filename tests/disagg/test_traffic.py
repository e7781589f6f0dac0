from __future__ import annotations

from typing import Any

import pytest

from gateway.config import BackendConfig, Disagg, Health, KvCache
from gateway.disagg.networks import Networks
from gateway.disagg.span import Waste
from gateway.disagg.traffic import LOOKED_AT, MINUTE, MINUTES, Traffic, stream_share, work_seconds
from gateway.fleet.aliases import Aliases
from gateway.fleet.backend import Source
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler
from gateway.scheduling.load import BackendLoad
from gateway.telemetry.metrics import Metrics
from gateway.types import EngineKind, Outcome
from policies.cost import step_seconds
from tests.telemetry.records import routed

BYTES = 1000
GIGABIT = 1e9 / 8
FACTS = EngineFacts(EngineKind.VLLM, "/health", ("m", "lora"), adapters={"lora": "m"})


class Stage:
    """Two engines of one model, and an alias of it.

    Attributes:
        now: seconds, on the clock.
        p, d: the engines' ids.
    """

    def __init__(self) -> None:
        self.now = 50.0
        fleet = Fleet(Health(), self.clock)
        reconciler = Reconciler(fleet, self.clock, 0.0)
        configs = [BackendConfig(url=f"http://{name}:1") for name in "pd"]
        reconciler.offer(Source.CONFIG, configs)
        for backend in fleet:
            fleet.probe_succeeded(backend, FACTS)
        fleet.aliases = Aliases({"alias": ["absent", "m"]})
        self.p, self.d = (backend.id for backend in fleet)
        self.loads = {id: BackendLoad(id) for id in (self.p, self.d)}
        self.metrics = Metrics(fleet.knows)
        self.networks = Networks(Disagg(models={"m": KvCache(bytes_per_token=BYTES)}))
        self.traffic = Traffic(
            fleet=fleet,
            loads=self.loads,
            networks=self.networks,
            metrics=self.metrics,
            pace=lambda: None,
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    def end(self, model: str = "m", **changes: Any) -> None:
        record = routed(**{"model": model, "backend": self.d, **changes})
        self.traffic.ended(record)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_what_one_engine_served_is_kept_apart_from_handovers(stage: Stage) -> None:
    stage.end(ttft=0.5, tpot=0.02, duration=3.0, queue_seconds=1.0)
    stage.end(ttft=9.0, tpot=0.5, duration=2.0, queue_seconds=0.0, prefill_backend=stage.p)
    seen = stage.traffic.seen("m")
    assert (seen.requests, seen.handovers, seen.seconds) == (2, 1, 4.0)
    assert (seen.ttft.count, seen.ttft.quantile(1.0)) == (1, 0.5)
    assert (seen.handed_ttft.count, seen.handed_ttft.quantile(1.0)) == (1, 9.0)
    assert (seen.tpot.count, seen.tpot.quantile(1.0)) == (1, 0.02)
    assert seen.prompts.count == 2


def test_work_is_where_it_was_done_and_as_much_as_engines_report(stage: Stage) -> None:
    stage.end(prompt_tokens=1000, uncached_tokens=200, reported_prompt_tokens=500, output_tokens=0)
    stage.end(
        prompt_tokens=1000,
        uncached_tokens=1000,
        reported_prompt_tokens=None,
        output_tokens=100,
        prefill_backend=stage.p,
    )
    seen = stage.traffic.seen("m")
    assert seen.prompts.mean == 750.0
    assert seen.prefill == {
        stage.d: pytest.approx(work_seconds(stage.loads[stage.d], 500, 100)),
        stage.p: pytest.approx(work_seconds(stage.loads[stage.p], 1000, 1000)),
    }
    share = stream_share(stage.loads[stage.d], 1050, None)
    assert seen.decode == {stage.d: pytest.approx(100 * share)}


def test_what_was_not_served_counts_for_nothing(stage: Stage) -> None:
    stage.end(outcome=Outcome.UPSTREAM_ERROR, ttft=None)
    stage.end(backend="", ttft=None, outcome=Outcome.REJECTED)
    stage.end(backend="gone")
    assert stage.traffic.seen("m").requests == 0
    stage.end(outcome=Outcome.CANCELLED, ttft=0.1)
    assert stage.traffic.seen("m").requests == 1


def test_of_very_many_some_stand_for_all_but_handovers_count_each(stage: Stage) -> None:
    for _ in range(2 * LOOKED_AT):
        stage.end(duration=2.0, queue_seconds=0.0)
    stage.traffic.refresh()
    before = stage.traffic.seen("m")
    assert before.requests == before.prompts.count == 2 * LOOKED_AT
    for _ in range(30):
        stage.end(duration=2.0, queue_seconds=0.0)
    for _ in range(7):
        stage.end(duration=2.0, queue_seconds=0.0, prefill_backend=stage.p)
    after = stage.traffic.seen("m")
    assert (after.requests - before.requests, after.handovers) == (37, 7)
    assert after.seconds - before.seconds == pytest.approx(74.0)
    assert after.prompts.count - before.prompts.count == 37
    assert after.ttft.count - before.ttft.count == 30
    each = before.decode[stage.d] / before.requests
    assert after.decode[stage.d] == pytest.approx(each * after.requests)
    stage.traffic.refresh()
    stage.end()
    assert stage.traffic.seen("m").requests == after.requests + 1


def test_aliases_and_adapters_count_for_the_model(stage: Stage) -> None:
    for name in ("m", "alias", "lora", ""):
        stage.end(name)
    assert stage.traffic.seen("m").requests == 4


def test_minutes_that_are_over_are_forgotten(stage: Stage) -> None:
    for _ in range(MINUTES):
        stage.end()
        stage.now += MINUTE
    assert stage.traffic.seen("m").requests == MINUTES - 1
    assert stage.traffic.seconds == MINUTE * (MINUTES - 1)
    stage.now += 20 * MINUTE + 7
    assert stage.traffic.seen("m").requests == 0
    assert stage.traffic.seconds == MINUTE * (MINUTES - 1) + 7
    stage.end()
    assert stage.traffic.seen("m").requests == 1


def test_a_transfer_teaches_the_network_and_is_held_against_what_was_expected(
    stage: Stage,
) -> None:
    links = stage.networks.of("m")
    assert links is not None
    before = links.bandwidth(stage.d)
    assert before == 10 * GIGABIT
    expected = links.seconds(stage.p, stage.d, 1e6)
    transfer = stage.traffic.transfer(stage.p, stage.d, "alias", 1e6, stage.now)
    assert links.seconds(stage.p, stage.d, 1.0) > expected  # behind it
    stage.now += 4.0
    transfer.arrived(seen=True)
    transfer.arrived(seen=True)
    transfer.dropped()
    seen = stage.traffic.seen("m")
    step = step_seconds(stage.loads[stage.d])
    assert (seen.transfers, seen.moved_tokens, seen.moved_bytes) == (1, 1e6, 1e6 * BYTES)
    assert seen.observed.sum == pytest.approx(4.0 - step)
    assert seen.predicted.sum == pytest.approx(expected)
    assert links.bandwidth(stage.d) < before / 2
    assert links.moved == stage.metrics.kv_bytes == 1e6 * BYTES
    assert stage.metrics.transfers_observed.count == stage.metrics.transfers_predicted.count == 1


@pytest.mark.parametrize("at_begin", [True, False])
def test_what_waits_for_a_decode_engines_own_prefills_says_nothing_of_the_network(
    stage: Stage, at_begin: bool
) -> None:
    links = stage.networks.of("m")
    assert links is not None
    before, load, lease = links.bandwidth(stage.d), stage.loads[stage.d], object()
    if at_begin:
        load.take(lease, load.prefill, 9000, 9000, 3.0, stage.now)
    transfer = stage.traffic.transfer(stage.p, stage.d, "m", 1e6, stage.now)
    stage.now += 4.0
    if at_begin:
        load.finish_prefill(lease, load.prefill, 9000, stage.now, done=True)
    else:
        load.take(lease, load.prefill, 9000, 9000, 3.0, stage.now)
    transfer.arrived(seen=True)
    assert stage.traffic.seen("m").observed.count == 1
    assert links.bandwidth(stage.d) == before


@pytest.mark.parametrize(("began", "seen"), [(None, True), (50.0, False)], ids=["begin", "end"])
def test_a_transfer_of_which_an_end_is_not_seen_is_counted_and_not_timed(
    stage: Stage, began: float | None, seen: bool
) -> None:
    links = stage.networks.of("m")
    assert links is not None
    stage.traffic.transfer(stage.p, stage.d, "m", 1e6, began).arrived(seen=seen)
    span = stage.traffic.seen("m")
    assert (span.moved_bytes, span.observed.count) == (1e6 * BYTES, 0)
    assert links.moved == 0.0
    assert links.seconds(stage.p, stage.d, 1e-9) < 0.01  # nothing is left under way


def test_a_transfer_that_came_to_nothing_is_not_counted(stage: Stage) -> None:
    links = stage.networks.of("m")
    assert links is not None
    transfer = stage.traffic.transfer(stage.p, stage.d, "m", 1e6, stage.now)
    transfer.dropped()
    transfer.arrived(seen=True)
    assert stage.traffic.seen("m").transfers == 0
    assert links.seconds(stage.p, stage.d, 1e-9) < 0.01


def test_of_a_model_without_a_shape_transfers_are_timed_and_not_weighed(stage: Stage) -> None:
    stage.networks.reconfigure(Disagg())
    transfer = stage.traffic.transfer(stage.p, stage.d, "m", 5000.0, stage.now)
    stage.now += 1.0
    transfer.arrived(seen=True)
    seen = stage.traffic.seen("m")
    assert (seen.moved_tokens, seen.moved_bytes, seen.predicted.count) == (5000.0, 0.0, 0)
    assert seen.observed.count == 1
    assert stage.metrics.kv_bytes == 0.0
    # Placing goes by an assumed one, and learns all the same.
    links = stage.networks.links("m")
    assert links.bandwidth(stage.d) < 10 * GIGABIT


def test_wasted_prefills_were_work(stage: Stage) -> None:
    stage.traffic.wasted(stage.p, "m", Waste.EXPIRED, 0.5)
    stage.traffic.wasted(stage.p, "m", Waste.EXPIRED, 0.25)
    stage.traffic.wasted(stage.p, "m", Waste.DECODE, 0.25)
    seen = stage.traffic.seen("m")
    assert seen.wasted == stage.metrics.wasted_prefills == {"expired": 2, "decode": 1}
    assert (seen.wasted_seconds, seen.prefill) == (1.0, {stage.p: 1.0})


def test_a_stream_takes_its_share_of_a_step_with_as_many_as_there_is_room_for() -> None:
    load = BackendLoad("d", capacity_tokens=100_000.0)
    each = load.stream_seconds + load.context_seconds * 1000
    room = 95  # of a thousand tokens each
    assert stream_share(load, 1000, None) == pytest.approx(load.step_seconds / room + each)
    paced = (0.012 - load.step_seconds) / each
    assert paced < room
    assert stream_share(load, 1000, 0.012) * paced == pytest.approx(0.012)
    # One that is too slow for the pace even alone has an engine for itself.
    assert stream_share(load, 1000, 0.001) == pytest.approx(load.step_seconds + each)
