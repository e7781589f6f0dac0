from __future__ import annotations

from typing import Any

import pytest

from gateway.config import BackendConfig, Backpressure, BreakerConfig, ConfigError, Health
from gateway.fleet.backend import Backend, BackendState, Source
from gateway.fleet.breaker import BreakerState
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet, UnknownBackend
from gateway.types import EngineKind

AFTER = 3


class World:
    """A fleet on a clock of its own, and everything that its listeners heard."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changes: list[tuple[str, BackendState, tuple[str, ...]]] = []
        self.restarts: list[str] = []
        self.suspects: list[str] = []
        self.fleet = Fleet(
            Health(unhealthy_after=AFTER),
            lambda: self.now,
            BreakerConfig(failures=AFTER, share=1.0),
        )
        self.fleet.on_change(lambda b: self.changes.append((b.id, b.state, b.models)))
        self.fleet.on_restart(lambda b: self.restarts.append(b.id))
        self.fleet.on_suspicion(lambda b: self.suspects.append(b.id))

    def add(self, name: str = "a", *models: str, **fields: Any) -> Backend:
        """A backend; a healthy one when it has models."""
        backend = self.fleet.add(BackendConfig(url=f"http://{name}:1", **fields)).backend
        if models:
            self.good_probe(backend, *models)
        return backend

    def good_probe(self, backend: Backend, *models: str, **facts: Any) -> None:
        found = EngineFacts(EngineKind.VLLM, "/health", models, **facts)
        self.fleet.probe_succeeded(backend, found)

    def bad_probes(self, backend: Backend, count: int = AFTER, *, gone: bool = False) -> None:
        for _ in range(count):
            self.fleet.probe_failed(backend, "GET /health: status 500", gone=gone)


@pytest.fixture
def world() -> World:
    return World()


# coming and going


def test_one_good_probe_lets_in(world: World) -> None:
    a = world.add()
    assert (a.state, a.since, a.cause) == (BackendState.STARTING, 100.0, "not probed yet")
    assert world.suspects == [a.id]
    world.now = 103.0
    world.good_probe(a, "m", capacity_tokens=900)
    assert (a.state, a.since, a.cause) == (BackendState.HEALTHY, 103.0, "")
    assert a.capacity_tokens == 900
    assert world.changes == [
        (a.id, BackendState.STARTING, ()),
        (a.id, BackendState.HEALTHY, ("m",)),
    ]
    world.good_probe(a, "m", capacity_tokens=900)
    assert len(world.changes) == 2


def test_a_model_list_that_is_empty_is_not_ready(world: World) -> None:
    a = world.add()
    world.good_probe(a)
    assert (a.state, a.cause) == (BackendState.STARTING, "GET /v1/models lists none")
    world.fleet.probe_succeeded(a, EngineFacts(EngineKind.OPENAI, "/health"))
    assert a.cause == "GET /v1/models cannot be read: name its models in the settings"
    world.good_probe(a, "m")
    assert a.state is BackendState.HEALTHY


def test_configured_models_need_no_list(world: World) -> None:
    a = world.add(models=["m"])
    world.fleet.probe_succeeded(a, EngineFacts(EngineKind.OPENAI, "/health"))
    assert a.state is BackendState.HEALTHY
    assert world.fleet.models() == {"m"}


def test_failures_in_a_row_put_out_and_one_good_probe_lets_in(world: World) -> None:
    a = world.add("a", "m")
    world.bad_probes(a, AFTER - 1)
    assert (a.state, a.cause) == (BackendState.HEALTHY, "GET /health: status 500")
    world.good_probe(a, "m")
    assert a.cause == ""
    world.bad_probes(a, AFTER - 1)
    assert a.state is BackendState.HEALTHY
    world.now = 110.0
    world.bad_probes(a, 1)
    assert (a.state, a.since, a.cause) == (
        BackendState.EJECTED,
        110.0,
        "GET /health: status 500",
    )
    world.now = 120.0
    world.bad_probes(a, 5)
    assert a.since == 110.0
    world.good_probe(a, "m")
    assert (a.state, a.since) == (BackendState.HEALTHY, 120.0)


def test_never_seen_becomes_ejected(world: World) -> None:
    a = world.add()
    world.bad_probes(a)
    assert a.state is BackendState.EJECTED
    world.good_probe(a, "m")
    assert a.state is BackendState.HEALTHY
    assert world.restarts == []


def test_the_same_address_is_the_same_backend(world: World) -> None:
    a = world.add("gpu", "m")
    changed = BackendConfig(url="HTTP://GPU:1/", capacity_tokens=5)
    again = world.fleet.add(changed, Source.ADMIN)
    assert again == (a, False)
    assert (a.capacity_tokens, a.models, a.source) == (5, ("m",), Source.ADMIN)
    assert a.state is BackendState.HEALTHY
    assert list(world.fleet) == [a]
    assert world.suspects == [a.id, a.id]
    assert len(world.changes) == 3


def test_a_bad_address_changes_nothing(world: World) -> None:
    with pytest.raises(ConfigError):
        world.fleet.add(BackendConfig(url="gpu:1"))
    assert list(world.fleet) == []
    assert world.changes == []


def test_what_comes_late_for_a_removed_one_does_not_hit_its_successor(world: World) -> None:
    old = world.add("a", "m")
    world.fleet.remove(old.id)
    assert world.changes[-1] == (old.id, BackendState.REMOVED, ("m",))
    with pytest.raises(UnknownBackend, match=old.id):
        world.fleet.get(old.id)
    world.fleet.report_failure(old.id, "late")
    world.fleet.report_success(old.id)
    new = world.add("a")
    assert new.id == old.id
    world.good_probe(old, "old")
    world.bad_probes(old)
    assert (new.state, new.models, new.failed_probes) == (BackendState.STARTING, (), 0)
    assert old.state is BackendState.REMOVED


def test_unknown_ids(world: World) -> None:
    for call in (world.fleet.get, world.fleet.remove, world.fleet.drain):
        with pytest.raises(UnknownBackend):
            call("nope")


# what the operator does


def test_draining_goes_on_being_probed(world: World) -> None:
    a = world.add("a", "m")
    world.now = 105.0
    world.fleet.drain(a.id)
    assert (a.state, a.since) == (BackendState.DRAINING, 105.0)
    assert world.fleet.models() == set()
    changes = len(world.changes)
    world.fleet.drain(a.id)
    assert len(world.changes) == changes
    world.now = 106.0
    world.bad_probes(a)
    assert (a.state, a.since) == (BackendState.DRAINING, 105.0)
    world.fleet.drain(a.id, on=False)
    assert (a.state, a.cause) == (BackendState.EJECTED, "GET /health: status 500")
    world.good_probe(a, "m")
    assert world.fleet.models() == {"m"}


def test_what_no_source_names_gets_nothing_new(world: World) -> None:
    a = world.add("a", "m")
    world.now = 105.0
    world.fleet.unlist(a)
    assert (a.state, a.since) == (BackendState.DRAINING, 105.0)
    assert world.changes[-1] == (a.id, BackendState.DRAINING, ("m",))
    assert world.fleet.models() == set()
    world.fleet.drain(a.id)
    world.fleet.unlist(a, on=False)
    assert a.state is BackendState.DRAINING
    world.fleet.drain(a.id, on=False)
    assert a.state is BackendState.HEALTHY


def test_a_late_removal_does_not_hit_the_successor(world: World) -> None:
    old = world.add("a", "m")
    assert world.fleet.remove(old.id, expect=old) is old
    new = world.add("a", "m")
    with pytest.raises(UnknownBackend):
        world.fleet.remove(old.id, expect=old)
    assert list(world.fleet) == [new]
    assert new.state is BackendState.HEALTHY


# what can be served


def test_a_model_whose_backends_are_out_is_known_still(world: World) -> None:
    a = world.add("a", "m")
    world.add("b", "n")
    world.bad_probes(a)
    assert world.fleet.models() == {"n"}
    assert world.fleet.knows("m")
    assert not world.fleet.knows("x")
    world.fleet.remove(a.id)
    assert not world.fleet.knows("m")


def test_an_unloaded_model_is_unknown_at_once(world: World) -> None:
    a = world.add("a", "base", "lora-1", "lora-2")
    world.good_probe(a, "base", "lora-1")
    assert world.fleet.models() == {"base", "lora-1"}
    assert not world.fleet.knows("lora-2")
    world.good_probe(a)
    assert world.fleet.models() == set()
    assert a.state is BackendState.HEALTHY
    world.good_probe(a)
    world.good_probe(a)
    assert a.state is BackendState.EJECTED


def test_while_a_backend_is_to_be_asked_no_model_is_unknown(world: World) -> None:
    assert not world.fleet.knows_models()
    a = world.add("a", "m")
    assert world.fleet.knows_models()
    b = world.add("b")
    assert not world.fleet.knows_models()
    world.bad_probes(b)
    assert world.fleet.knows_models()
    world.bad_probes(a)
    assert world.fleet.knows_models()


# what requests show


def test_failed_requests_put_out_until_the_breaker_lets_in(world: World) -> None:
    a = world.add("a", "m")
    for _ in range(3):
        world.fleet.report_failure(a.id, "status 500")
        world.fleet.report_failure(a.id, "status 500")
        world.fleet.report_success(a.id)
        world.fleet.report_success(a.id)
    assert a.state is BackendState.HEALTHY
    world.now += 100.0
    for _ in range(AFTER):
        world.fleet.report_failure(a.id, "status 500")
    assert (a.state, a.cause) == (BackendState.EJECTED, "3 requests in a row failed: status 500")
    assert world.suspects.count(a.id) == 1 + 6 + AFTER
    assert world.fleet.models() == set()
    world.now += 5.0
    world.fleet.tick()
    assert a.state is BackendState.HEALTHY
    assert world.changes[-1] == (a.id, BackendState.HEALTHY, ("m",))
    assert a.trials is not None
    world.fleet.report_accepted(a.id, sent_at=world.now, trial=a.trials)
    assert (a.trials, a.cause) == (None, "")


def test_good_probes_do_not_bring_back_what_fails_requests_only(world: World) -> None:
    a = world.add("a", "m")
    for _ in range(AFTER):
        world.fleet.report_failure(a.id, "status 500")
        world.good_probe(a, "m")
    world.good_probe(a, "m")
    assert a.state is BackendState.EJECTED


def test_good_probes_bring_back_what_was_gone(world: World) -> None:
    a = world.add("a", "m")
    for _ in range(AFTER):
        world.fleet.report_failure(a.id, "connect", gone=True)
    assert a.state is BackendState.EJECTED
    world.good_probe(a, "m")
    assert a.state is BackendState.HEALTHY
    assert a.breaker.state is BreakerState.HALF_OPEN
    assert world.restarts == [a.id]


def test_a_busy_backend_is_avoided_for_as_long_as_it_says(world: World) -> None:
    a = world.add("a", "m")
    told = len(world.changes)
    for says, seconds in ((None, 1.0), (4.0, 4.0), (9999.0, 10.0)):
        world.fleet.report_busy(a.id, says)
        assert a.busy is not None
        assert a.state is BackendState.HEALTHY
        world.now += seconds - 0.01
        world.fleet.tick()
        assert a.busy is not None
        world.now += 0.01
        world.fleet.tick()
        assert a.busy is None
    assert len(world.changes) == told + 6
    world.fleet.report_busy(a.id, 0.0)
    assert a.busy is None


def test_a_busy_backend_that_takes_a_request_is_not_busy(world: World) -> None:
    a = world.add("a", "m")
    world.fleet.report_busy(a.id, 5.0)
    world.fleet.report_accepted(a.id, sent_at=world.now - 1.0, trial=None)
    assert a.busy is not None
    world.fleet.report_accepted(a.id, sent_at=world.now, trial=a.busy)
    assert a.busy is not None, "at the edge of its capacity it would change all the time"
    world.now += 1.0
    world.fleet.report_accepted(a.id, sent_at=world.now, trial=a.busy)
    assert a.busy is None
    assert a.breaker.failures == 0


def test_without_probes_requests_alone_show_what_works(world: World) -> None:
    fleet = Fleet(Health(probes=False), lambda: world.now, BreakerConfig(failures=1))
    restarts: list[str] = []
    fleet.on_restart(lambda backend: restarts.append(backend.id))
    with pytest.raises(ConfigError, match="models: must be named"):
        fleet.add(BackendConfig(url="http://a:1"))
    assert list(fleet) == []
    a = fleet.add(BackendConfig(url="http://a:1", models=["m"])).backend
    assert a.state is BackendState.HEALTHY
    fleet.report_failure(a.id, "connect", gone=True)
    world.now += 5.0
    fleet.tick()
    fleet.report_accepted(a.id, sent_at=world.now, trial=a.trials)
    assert a.breaker.state is BreakerState.CLOSED
    assert restarts == [a.id]


def test_settings_can_be_replaced(world: World) -> None:
    a = world.add("a", "m")
    world.fleet.reconfigure(Health(), BreakerConfig(failures=1), Backpressure(avoid=7.0))
    world.fleet.report_busy(a.id, None)
    assert a.busy_until == world.now + 7.0
    world.fleet.report_failure(a.id, "reset")
    assert a.state is BackendState.EJECTED


# restarts


def test_an_engine_that_was_gone_is_another_process(world: World) -> None:
    a = world.add("a", "m")
    world.fleet.on_restart(lambda backend: order.append("restart"))
    world.fleet.on_change(lambda backend: order.append(str(backend.state)))
    order: list[str] = []
    world.bad_probes(a, gone=True)
    world.good_probe(a, "m")
    assert order == ["ejected", "restart", "healthy"]
    world.good_probe(a, "m")
    assert world.restarts == [a.id]


def test_an_engine_that_was_only_ill_keeps_its_prefixes(world: World) -> None:
    """Ejected for slow or failing answers, but it never stopped listening."""
    a = world.add("a", "m")
    world.bad_probes(a)
    world.good_probe(a, "m")
    assert a.state is BackendState.HEALTHY
    assert world.restarts == []


def test_a_refused_connection_is_enough(world: World) -> None:
    a = world.add("a", "m")
    world.bad_probes(a, 1, gone=True)
    world.good_probe(a, "m")
    assert world.restarts == [a.id]
    world.fleet.report_failure(a.id, "connect", gone=True)
    world.good_probe(a, "m")
    assert world.restarts == [a.id, a.id]


def test_a_hiccup_is_not(world: World) -> None:
    a = world.add("a", "m")
    world.bad_probes(a, AFTER - 1)
    world.good_probe(a, "m")
    world.fleet.report_failure(a.id, "reset")
    world.good_probe(a, "m")
    assert world.restarts == []


def test_start_times_decide(world: World) -> None:
    a = world.add()
    world.good_probe(a, "m", started=5.0)
    world.bad_probes(a, gone=True)
    world.good_probe(a, "m", started=5.0)
    assert world.restarts == []
    world.good_probe(a, "m", started=6.0)
    assert world.restarts == [a.id]


def test_a_page_that_tells_of_another_process(world: World) -> None:
    a = world.add()
    world.good_probe(a, "m", started=5.0)
    world.fleet.probe_read(a, 5.0, 100.0)
    world.fleet.probe_read(a, None, 100.0)
    assert world.restarts == []
    world.fleet.probe_read(a, 6.0, 10.0)
    assert world.restarts == [a.id]
    world.good_probe(a, "m", started=6.0)
    assert world.restarts == [a.id]


def test_processes_that_take_turns_are_no_restarts(world: World) -> None:
    """Several of them behind one address, as behind a load balancer."""
    a = world.add()
    world.good_probe(a, "m", started=5.0)
    for _ in range(3):
        world.fleet.probe_read(a, 6.0, 10.0)
        world.fleet.probe_read(a, 5.0, 900.0)
        world.good_probe(a, "m", started=5.0)
    assert world.restarts == [a.id]
    world.bad_probes(a, gone=True)
    world.good_probe(a, "m", started=5.0)
    assert world.restarts == [a.id, a.id]


def test_counts_that_fall_tell_where_start_times_do_not(world: World) -> None:
    a = world.add("a", "m")
    world.fleet.probe_read(a, None, 100.0)
    world.fleet.probe_read(a, None, None)
    world.fleet.probe_read(a, None, 250.0)
    assert world.restarts == []
    world.fleet.probe_read(a, None, 20.0)
    world.fleet.probe_read(a, None, 30.0)
    assert world.restarts == [a.id]


def test_start_times_outweigh_counts(world: World) -> None:
    """A rank that is taken away takes its counts along."""
    a = world.add("a", "m")
    world.fleet.probe_read(a, 5.0, 100.0)
    world.fleet.probe_read(a, 5.0, 50.0)
    assert world.restarts == []


def test_doubt_has_a_backend_probed_once(world: World) -> None:
    a = world.add("a", "m")
    suspects: list[str] = []
    world.fleet.on_suspicion(lambda backend: suspects.append(backend.id))
    world.fleet.probe_doubted(a)
    world.fleet.probe_doubted(a)
    assert suspects == [a.id]
    world.good_probe(a, "m")
    assert world.restarts == [a.id]


def test_the_first_failure_in_a_row_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = world.add("a", "m")
    for _ in range(2):
        world.bad_probes(a, AFTER - 1)
        world.good_probe(a, "m")
    said = [message for message in caplog.messages if "a probe failed: " in message]
    assert len(said) == 2


def test_why_nothing_serves(world: World) -> None:
    a, b = world.add("a", "m"), world.add("b")
    assert world.fleet.why_unready() == ["not probed yet"]
    world.fleet.probe_failed(b, "GET /health: status 503")
    world.bad_probes(a)
    assert len(world.fleet.why_unready()) == 2
    world.good_probe(a, "m")
    assert world.fleet.why_unready() == ["GET /health: status 503"]


def test_another_engine_at_the_address(world: World) -> None:
    a = world.add("a", "m")
    world.fleet.probe_succeeded(a, EngineFacts(EngineKind.SGLANG, "/ready", ("m",)))
    assert world.restarts == [a.id]
    assert a.kind is EngineKind.SGLANG


def test_a_page_that_fails_once_is_not_forgotten(world: World) -> None:
    a = world.add()
    said = {"capacity_tokens": 900, "block_size": 16, "cache_dtype": "fp8", "version": "0.33.0"}
    said["chunk_tokens"] = 512
    world.good_probe(a, "m", started=5.0, **said)
    world.fleet.probe_succeeded(a, EngineFacts(EngineKind.VLLM, "/health"))
    assert (a.capacity_tokens, a.models) == (900, ("m",))
    assert a.facts is not None
    assert (a.facts.cache_dtype, a.facts.version) == ("fp8", "0.33.0")
    assert a.facts.chunk_tokens == 512
    world.bad_probes(a, gone=True)
    world.fleet.probe_succeeded(a, EngineFacts(EngineKind.VLLM, "/health", ("m",)))
    # whether it is another process cannot be told, so nothing of the old one is believed
    assert a.capacity_tokens is None
    assert world.restarts == [a.id]


def test_refused_requests_and_a_refused_probe_eject_at_once(world: World) -> None:
    a = world.add("a", "m")
    world.fleet.report_failure(a.id, "connect", gone=True)
    assert a.state is BackendState.HEALTHY
    world.bad_probes(a, 1, gone=True)
    assert a.state is BackendState.EJECTED


def test_a_refused_probe_alone_does_not(world: World) -> None:
    a = world.add("a", "m")
    world.bad_probes(a, 1, gone=True)
    assert a.state is BackendState.HEALTHY


def test_the_last_that_could_serve_are_tried_before_their_time(world: World) -> None:
    """They may all be well again, and to wait helps nobody."""
    a, b, other = world.add("a", "m"), world.add("b", "m"), world.add("c", "n")
    for backend in (a, b):
        for _ in range(AFTER):
            world.fleet.report_failure(backend.id, "reset")
        world.now += 0.1
    world.now += 0.7
    world.fleet.tick()
    assert a.state is b.state is BackendState.EJECTED  # not at once, or they were never left alone
    world.now += 0.2
    world.fleet.tick()
    assert (a.breaker.state, b.breaker.state) == (BreakerState.HALF_OPEN, BreakerState.OPEN)
    world.fleet.report_failure(a.id, "reset", trial=a.trials)
    world.fleet.tick()
    assert a.breaker.state is BreakerState.OPEN
    world.now += 0.5
    world.fleet.tick()
    assert (a.breaker.state, b.breaker.state) == (BreakerState.OPEN, BreakerState.HALF_OPEN)
    assert other.state is BackendState.HEALTHY


def test_where_others_serve_the_time_is_kept(world: World) -> None:
    a, _ = world.add("a", "m"), world.add("b", "m")
    for _ in range(AFTER):
        world.fleet.report_failure(a.id, "reset")
    world.now += 4.9
    world.fleet.tick()
    assert a.breaker.state is BreakerState.OPEN


def test_a_busy_one_alone_is_not_enough(world: World) -> None:
    a, b = world.add("a", "m"), world.add("b", "m")
    for _ in range(AFTER):
        world.fleet.report_failure(a.id, "reset")
    world.now += 1.0
    world.fleet.report_busy(b.id, retry_after=5.0)
    world.fleet.tick()
    assert a.breaker.state is BreakerState.HALF_OPEN
