"""F02: every documented option has an effect.

Each entry sets one option to a value that is not its default, reads it back from the running
gateway, and shows one thing that the default would have done otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway.admin.redaction import redacted
from gateway.config import (
    BackendConfig,
    BackendTls,
    Disagg,
    ModelTimeouts,
    Redis,
    Replication,
    Settings,
)
from gateway.secrets import hash_key
from policies.prefix_affinity import PrefixAffinityParams
from tests.conftest import StartBackend
from tests.harness.gateway_process import ROOT, GatewayProcess, free_port
from tests.harness.routes import Json, text
from tests.process import effects
from tests.process.effects import Check, Site, due, goes


@dataclass(frozen=True)
class Case:
    """Attributes:
    value: not the default.
    also: other settings that the check needs, by dotted name.
    """

    option: str
    value: Any
    check: Check
    also: tuple[tuple[str, Any], ...] = ()


def leaves(tree: Json, above: str = "") -> set[str]:
    """Dotted names of everything in a tree of settings that has no further settings below."""
    names: set[str] = set()
    for name, value in tree.items():
        below = isinstance(value, dict) and value
        names |= leaves(value, f"{above}{name}.") if below else {above + name}
    return names


AUTH = ("auth.enabled", True)
API_KEY = {
    **{"name": "team", "hash": hash_key(effects.API_KEY), "key": None, "tenant": None},
    **{"models": None, "max_priority": "normal", "names_tenants": False},
    "limits": {"requests_per_minute": 5, "tokens_per_minute": None, "max_concurrent": None},
}
READER = {"name": "eve", "role": "read", "hash": hash_key(effects.API_KEY), "token": None}
TLS = {
    "backends.tls",
    "server.tls",
    *(f"backend_tls.{name}" for name in BackendTls.__struct_fields__),
}
"""These need certificates: tests/process/test_tls.py has them."""
REDIS = leaves(msgspec.to_builtins(Redis()), "redis.")
"""These need a Redis: tests/shared/ has them."""
REPLICATION = {f"replication.{name}" for name in Replication.__struct_fields__}
"""So do these."""
DISAGG = leaves(msgspec.to_builtins(Disagg()), "disagg.") | {"backends.transfer"}
"""These need prefill and decode engines: tests/disagg/ has them."""
FILES = {"log.access", "log.decisions"}
NO_GATE = ("scheduling.gate", None)
ONE = ("scheduling.decode.max_requests", 1)
NO_NORMAL = ("scheduling.priorities.normal", 0.0)
NO_LOW = ("scheduling.priorities.low", 0.0)
TEAMS = ("scheduling.tenants.header", "x-team")
SHORT_RANGE = {"min_tokens": 100, "max_requests": 1, "max_cache_share": None}
HIGH, NORMAL, LOW = map(effects.priority, ("high", "normal", "low"))
A, B = map(effects.tenant, "ab")
VLLM = ("backends.kind", "vllm")
RARE_PROBES = ("health.interval", 60.0)
NO_TIMEOUTS = msgspec.to_builtins(ModelTimeouts())
FIRST = ("breaker.failures", 1)
TWO = ("breaker.failures", 2)
TINY_SHARE = ("breaker.share", 0.01)
NOBODY = "127.0.0.1:1"
UNANSWERED = {"host": "x.test", "port": 1, "timeout": 0.5, "servers": [NOBODY]}
LISTED_FILE = {"path": "listed.yaml", "interval": 0.1}
LISTED = ("discovery.file", [LISTED_FILE])
LONG = ("scheduling.prefill_seconds", 0.25)
"""So that what `Site.long` sends is in the prefill class while the gate stays open beside it."""
ONE_OF_EACH = (
    LONG,
    ("scheduling.prefill.max_requests", 1),
    ("scheduling.decode.max_requests", 1),
)

CASES = (
    Case("server.host", "0.0.0.0", effects.answers_elsewhere),
    Case("server.keep_alive", 0.9, effects.closes_idle_connections),
    Case("server.max_body", 4000, effects.refuses_large_bodies),
    Case("server.trusted_proxies", ["127.0.0.0/8"], effects.believes_the_proxy),
    Case("server.deny_paths", ["/v1/denied"], effects.denies_a_path),
    Case("server.pass_transfer_fields", True, effects.passes_transfers),
    Case("server.body_timeout", 0.3, effects.refuses_slow_bodies),
    Case("server.shutdown_delay", 4.0, effects.serves_for_a_while),
    Case("server.drain", 1.0, effects.ends_streams_that_take_too_long),
    Case("server.parser", "h11", effects.takes_any_method),
    Case("server.max_connections", 2, effects.refuses_a_second_connection),
    Case("server.max_head", 2000, effects.refuses_heads(431, headers=3, size=1000)),
    Case("server.max_headers", 10, effects.refuses_heads(431, headers=20)),
    Case("server.max_target", 100, effects.refuses_heads(414, target="/live?" + "q" * 200)),
    Case("server.head_timeout", 0.3, effects.refuses_slow_heads),
    Case("server.write_timeout", 0.5, effects.gives_up_readers_that_stall),
    Case(
        "server.max_body_total",
        5000,
        effects.refuses_a_second_large_body,
        (("server.max_body", 5000),),
    ),
    Case("server.response_headers", False, effects.has_no_added_headers),
    Case("server.stream_ping", 0.2, effects.comments_into_silence),
    Case("server.watch", 0.1, effects.loads_what_changes),
    Case("backends.kind", "ollama", effects.probes_as_told),
    Case("backends.role", "prefill", effects.leaves_whole_requests_to_others),
    Case("backends.models", ["renamed"], effects.serves_what_it_is_said_to),
    Case("backends.capacity_tokens", 3000, effects.holds_no_more_than_its_capacity),
    Case("backends.priority", True, effects.passes_priorities_on, (("backends.kind", "vllm"),)),
    Case("discovery.linger", 0.0, effects.forgets_at_once, (LISTED,)),
    Case("discovery.file", [LISTED_FILE], effects.lists_from_a_file),
    Case("discovery.dns", [UNANSWERED], effects.asks),
    Case("discovery.kubernetes", [{"service": "x", "api": f"http://{NOBODY}"}], effects.asks),
    Case("backends.api_key", "its-own-key", effects.shows_the_backend_its_key),
    Case("auth.enabled", True, effects.wants_a_key),
    Case("auth.keys", [API_KEY], effects.knows_the_key, (AUTH,)),
    Case("auth.open_metrics", True, effects.has_open_metrics, (AUTH,)),
    Case("auth.pass_credentials", True, effects.passes_keys_on, (AUTH, ("auth.keys", [API_KEY]))),
    Case(
        "auth.without_redis",
        "refuse",
        effects.refuses_what_it_cannot_look_up,
        (AUTH, ("auth.keys", [API_KEY]), ("redis.url", f"redis://{NOBODY}")),
    ),
    Case("models", {"small": ["m"]}, effects.goes_by_another_name),
    Case("policy.name", "round_robin", effects.rotates),
    Case("policy.params.theta_max", 0.0, effects.has_no_price),
    Case("policy.params.eta", 100.0, effects.prices_streams),
    Case("policy.params.spoil", 100.0, effects.prices_spoilt_streams),
    Case("policy.params.omega", 0.0, effects.ignores_decode),
    Case("scheduling.prefill_seconds", 0.001, effects.is_prefill_work),
    Case("scheduling.prefill_share", 1.0, effects.prefill_goes_first, ONE_OF_EACH),
    Case("scheduling.gate", None, effects.sends_everything_on),
    Case("scheduling.order", "arrival", goes([0, 1], due(60_000), due(30_000)), (ONE,)),
    Case("scheduling.pace", None, effects.stalls_streams),
    Case("scheduling.pace_tolerance", 100.0, effects.stalls_streams),
    Case("scheduling.shed_factor", 1.0, effects.refuses_what_would_be_late),
    Case("scheduling.target.seconds", 7.0, effects.is_due_in(7.0, "hello")),
    Case("scheduling.target.factor", 0.0, effects.is_due_in(2.0, text("due", 200_000))),
    Case("scheduling.priorities.normal", 1.0, goes([1, 0], HIGH, NORMAL), (ONE, NO_LOW)),
    Case("scheduling.priorities.low", 1.0, goes([1, 0], HIGH, LOW), (ONE, NO_NORMAL)),
    Case("scheduling.tenants.header", "x-team", effects.tells_tenants_apart),
    Case("scheduling.tenants.quantum", 1000.0, goes([0, 1, 2], A, A, B), (ONE, TEAMS)),
    Case("scheduling.tenants.weights", {"a": 1000.0}, goes([0, 1, 2], A, A, B), (ONE, TEAMS)),
    Case("scheduling.tenants.max_tracked", 1, effects.forgets_tenants, (ONE, TEAMS)),
    Case("scheduling.max_kv_use", 0.5, effects.sends_nothing_to_a_full_cache, (VLLM,)),
    Case("scheduling.ranges", [SHORT_RANGE], effects.queues(Site.long, 1)),
    Case("scheduling.prefill.max_requests", 2, effects.queues(Site.long, 2), (LONG, NO_GATE)),
    Case(
        "scheduling.prefill.max_uncached_tokens",
        4000,
        effects.queues(Site.long, 1),
        (LONG, NO_GATE),
    ),
    Case(
        "scheduling.prefill.max_waiting_tokens",
        1,
        effects.refuses_a_second_waiter(Site.long),
        ONE_OF_EACH,
    ),
    Case(
        "scheduling.prefill.max_waiting_bytes",
        1,
        effects.refuses_a_second_waiter(Site.long),
        ONE_OF_EACH,
    ),
    Case(
        "scheduling.prefill.max_waiting",
        0,
        effects.refuses_to_queue(Site.long, "queue_full"),
        ONE_OF_EACH,
    ),
    Case(
        "scheduling.prefill.max_wait",
        0.2,
        effects.refuses_to_queue(Site.long, "expired"),
        ONE_OF_EACH,
    ),
    Case("scheduling.decode.max_requests", 3, effects.queues(Site.short, 3)),
    Case("scheduling.decode.max_uncached_tokens", 1, effects.queues(Site.short, 1)),
    Case(
        "scheduling.decode.max_waiting",
        0,
        effects.refuses_to_queue(Site.short, "queue_full"),
        ONE_OF_EACH,
    ),
    Case(
        "scheduling.decode.max_wait",
        0.2,
        effects.refuses_to_queue(Site.short, "expired"),
        ONE_OF_EACH,
    ),
    Case(
        "scheduling.decode.max_waiting_tokens",
        1,
        effects.refuses_a_second_waiter(Site.short),
        ONE_OF_EACH,
    ),
    Case(
        "scheduling.decode.max_waiting_bytes",
        1,
        effects.refuses_a_second_waiter(Site.short),
        ONE_OF_EACH,
    ),
    Case("retries.after_timeout", True, effects.tries_again_late, (("timeouts.first_byte", 0.5),)),
    Case("retries.max_retries", 0, effects.passes_the_refusal_on),
    Case("retries.budget", 0.0, effects.passes_the_refusal_on),
    Case("index.max_blocks", 1000, effects.evicts_beyond_the_bound),
    Case("index.capacity_tokens", 3000, effects.holds_no_more_than_its_capacity),
    Case("health.interval", 0.2, effects.probes_often),
    Case("health.timeout", 0.3, effects.gives_up_on_slow_probes, (("health.interval", 0.2),)),
    Case(
        "health.unhealthy_after",
        1,
        effects.ejects_after_one_probe,
        (("health.interval", 0.2), ("health.timeout", 0.3)),
    ),
    Case("health.load_interval", 0.2, effects.asks_for_load, (VLLM, RARE_PROBES)),
    Case("health.probes", False, effects.asks_nobody, (("backends.models", ["m"]),)),
    Case("breaker.failures", 1, effects.opens_at_once, (RARE_PROBES,)),
    Case("breaker.window", 0.5, effects.forgets_failures, (RARE_PROBES, TWO, TINY_SHARE)),
    Case("breaker.share", 0.01, effects.opens_at_a_share, (RARE_PROBES, TWO)),
    Case("breaker.open", 0.5, effects.is_tried_after(0.5), (RARE_PROBES, FIRST)),
    Case(
        "breaker.max_open", 0.6, effects.is_tried_again, (RARE_PROBES, FIRST, ("breaker.open", 0.5))
    ),
    Case(
        "breaker.trials", 3, effects.tries_at_a_time(3), (RARE_PROBES, FIRST, ("breaker.open", 0.5))
    ),
    Case("backpressure.avoid", 7.0, effects.tells_to_wait(7)),
    Case("backpressure.max_avoid", 0.5, effects.comes_back_from_busy),
    Case("backpressure.trials", 2, effects.takes_when_busy(2)),
    Case("timeouts.connect", 0.5, effects.gives_up_connecting, (RARE_PROBES,)),
    Case("timeouts.first_byte", 0.5, effects.gives_up_waiting),
    Case(
        "timeouts.prefill_first_byte",
        0.5,
        effects.gives_up_waiting,
        (("scheduling.prefill_seconds", 1e-6),),
    ),
    Case("timeouts.idle", 0.5, effects.gives_up_in_the_middle),
    Case("timeouts.total", 0.7, effects.gives_up_on_long_answers),
    Case(
        "timeouts.models",
        {"m": NO_TIMEOUTS | {"first_byte": 0.5}},
        effects.gives_up_waiting,
    ),
    Case("stored.max_ids", 1, effects.forgets_owners("resp_1", "resp_2")),
    Case("stored.ttl", 0.2, effects.forgets_owners("resp_1")),
    Case("admin.token", "secret", effects.wants_the_token),
    Case("admin.users", [READER], effects.lets_readers_read, (("admin.token", "secret"),)),
    Case("admin.listen", f"127.0.0.1:{free_port()}", effects.keeps_admin_apart),
    Case("admin.allow_backends", ["10.0.0.0/8"], effects.allows_no_backend_here),
    Case("log.level", "debug", effects.says_more),
    Case("log.access", "access.jsonl", effects.writes_lines),
    Case("log.chains", True, effects.writes_chains, (("log.access", "access.jsonl"),)),
    Case("log.decisions", "decisions.jsonl", effects.writes_decisions),
)


def put(tree: Json, option: str, value: Any) -> None:
    *sections, name = option.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


def placed(option: str, value: Any, directory: Path) -> Any:
    """The value, its files in a directory."""
    if option == "discovery.file":
        return [entry | {"path": str(directory / entry["path"])} for entry in value]
    return str(directory / value) if option in FILES else value


def read(tree: Json, option: str) -> Any:
    for name in option.split("."):
        tree = tree[name]
    return tree


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.option)
def test_F02_the_option_has_an_effect(
    case: Case, start_backend: StartBackend, tmp_path: Path
) -> None:
    backend = start_backend()
    entry: Json = {"url": backend.url}
    settings: Json = {"backends": entry}
    for option, other in (*case.also, (case.option, case.value)):
        put(settings, option, placed(option, other, tmp_path))
    value = read(settings, case.option)
    with GatewayProcess({**settings, "backends": [entry]}, tmp_path) as gw:
        running = gw.admin("GET", "/config")
        [running["backends"]] = running["backends"]
        name = case.option.rpartition(".")[2]
        assert covers(read(running, case.option), redacted(value, name))
        case.check(Site(gw, backend, tmp_path))


def covers(shown: Any, given: Any) -> bool:
    """Whether a value is the one that was given, completed with defaults in its sections."""
    if isinstance(given, dict) and isinstance(shown, dict):
        return all(covers(shown.get(name), value) for name, value in given.items())
    if isinstance(given, list) and isinstance(shown, list):
        return len(given) == len(shown) and all(map(covers, shown, given))
    return bool(shown == given)


def test_F02_the_port_is_the_one_that_was_set(tmp_path: Path) -> None:
    with GatewayProcess({}, tmp_path) as gw:
        assert gw.admin("GET", "/config")["server"]["port"] == gw.port


def test_F02_every_option_is_in_the_table() -> None:
    options = leaves(msgspec.to_builtins(Settings())) - {"backends", "policy.params"}
    options |= {f"backends.{name}" for name in BackendConfig.__struct_fields__}
    options |= {f"policy.params.{name}" for name in PrefixAffinityParams.__struct_fields__}
    # Every test here needs a URL, and each gateway listens on a port of its own.
    assert {case.option for case in CASES} == options - {
        "backends.url",
        "server.port",
    } - TLS - REDIS - REPLICATION - DISAGG


def test_F02_every_option_is_documented() -> None:
    documented = leaves(yaml.safe_load((ROOT / "conf" / "prefixgate.yaml").read_text()))
    assert documented == leaves(msgspec.to_builtins(Settings()))


def test_F02_no_value_of_the_table_is_the_default() -> None:
    defaults = msgspec.to_builtins(Settings())
    defaults["backends"] = msgspec.to_builtins(BackendConfig(url="http://x"))
    defaults["policy"]["params"] = msgspec.to_builtins(PrefixAffinityParams())
    for case in CASES:
        assert read(defaults, case.option) != case.value
