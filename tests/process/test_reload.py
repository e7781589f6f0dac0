"""Loading the config file anew, with traffic running."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import End
from tests.harness.routes import CHAT, text
from tests.process.config_file import ConfigFile, reloads
from tests.process.effects import Site
from tests.process.test_options import CASES, FILES, Case, put

WATCH = {"watch": 0.1}


@pytest.fixture
def backend(start_backend: StartBackend) -> FakeBackend:
    return start_backend()


# options

RELOADED = (
    *("server.max_body", "server.body_timeout", "server.shutdown_delay", "server.drain"),
    *("server.response_headers", "server.stream_ping", "server.watch"),
    *("backends.models", "backends.capacity_tokens", "backends.priority"),
    *("policy.name", "policy.params.omega", "scheduling.tenants.header", "scheduling.ranges"),
    *("scheduling.decode.max_requests", "scheduling.decode.max_wait"),
    *("retries.max_retries", "retries.budget", "index.max_blocks", "index.capacity_tokens"),
    *("health.interval", "health.timeout", "health.unhealthy_after"),
    *("timeouts.connect", "timeouts.first_byte", "timeouts.idle"),
    *("admin.token", "log.chains"),
)
"""One at least of everything that is put into force in a way of its own."""


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.option in RELOADED], ids=lambda case: case.option
)
def test_F02_the_option_has_its_effect_after_a_reload(
    case: Case, backend: FakeBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    """As it has after a start."""
    settings: dict[str, Any] = {}
    for option, value in case.also:
        if not option.startswith("backends."):
            put(settings, option, str(tmp_path / value) if option in FILES else value)
    gw = gateway([backend], **settings)
    file = ConfigFile(gw)
    for option, value in (*case.also, (case.option, case.value)):
        section, _, name = option.partition(".")
        if section == "backends":
            [entry] = file.tree["backends"]
            file.set("backends", [entry | {name: value}])
        elif (option, value) not in case.also:
            file.set(option, value)
    named = case.option.partition(".")[0]
    named = named if named in ("backends", "policy") else case.option
    assert file.reload() == {"changed": [named], "needs_restart": []}
    if case.option == "admin.token":
        gw.http.headers["authorization"] = f"Bearer {case.value}"
    case.check(Site(gw, backend, tmp_path))


def test_the_log_becomes_quieter_at_once(backend: FakeBackend, gateway: StartGateway) -> None:
    gw = gateway([backend])
    file = ConfigFile(gw)
    file.set("server.max_body", 2000)
    file.reload()
    assert "config reloaded, changed: server.max_body" in gw.log
    file.set("log.level", "error")
    file.reload()
    assert "config reloaded, changed: log.level" not in gw.log


def test_all_options_of_the_list_exist() -> None:
    assert {case.option for case in CASES} >= set(RELOADED)


def test_what_needs_a_restart_is_named_and_the_rest_applied(
    backend: FakeBackend, gateway: StartGateway
) -> None:
    gw = gateway([backend])
    file = ConfigFile(gw)
    file.set("server.port", gw.port + 1)
    file.set("server.max_body", 2000)
    expected = {"changed": ["server.max_body"], "needs_restart": ["server.port"]}
    assert file.reload() == expected
    running = gw.admin("GET", "/config")["server"]
    assert (running["port"], running["max_body"]) == (gw.port, 2000)
    assert gw.post(CHAT.path, CHAT.body([text("large", 3000)])).status_code == 413
    assert "needs a restart to be as the file says: server.port" in gw.log
    # As long as that is so it is said again.
    assert file.reload() == expected | {"changed": []}
    file.set("server.port", gw.port)
    assert file.reload() == {"changed": [], "needs_restart": []}


# what else has a say


def test_what_the_admin_api_changed_stays_until_the_file_changes_it(
    backend: FakeBackend, gateway: StartGateway
) -> None:
    gw = gateway([backend])
    file = ConfigFile(gw)
    gw.admin("PUT", "/policy", {"name": "round_robin"})
    gw.admin("PATCH", "/scheduling", {"gate": 7.0, "decode": {"max_wait": 7.0}})
    file.set("scheduling.decode", {"max_wait": 8.0})
    assert file.reload()["changed"] == ["scheduling.decode.max_wait"]
    running = gw.admin("GET", "/config")
    assert running["policy"]["name"] == gw.admin("GET", "/policy")["name"] == "round_robin"
    assert running["scheduling"] == gw.admin("GET", "/scheduling")
    assert running["scheduling"]["gate"] == 7.0
    assert running["scheduling"]["decode"]["max_wait"] == 8.0
    file.set("policy.name", "least_load")
    assert file.reload()["changed"] == ["policy"]
    assert gw.admin("GET", "/policy")["name"] == "least_load"


def test_a_change_that_does_not_go_with_the_admin_apis_is_refused(
    backend: FakeBackend, gateway: StartGateway
) -> None:
    gw = gateway([backend])
    file = ConfigFile(gw)
    gw.admin("PATCH", "/scheduling", {"priorities": {"normal": 0.9}})
    file.set("scheduling.priorities", {"low": 0.5})
    file.set("server.max_body", 2000)
    assert "admin API" in file.refused()
    running = gw.admin("GET", "/config")
    assert running["server"]["max_body"] != 2000
    assert running["scheduling"]["priorities"] == {"normal": 0.9, "low": 0.05}


def test_drained_backends_stay_drained_over_reloads_and_flaps(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    first, second = start_backend(), start_backend()
    gw = gateway([first, second], health={"interval": 0.1, "unhealthy_after": 1})
    file = ConfigFile(gw)
    drained = gw.backend_id(first.url)
    gw.admin("POST", f"/backends/{drained}/drain")
    [one, two] = file.tree["backends"]
    file.set("backends", [two, one | {"capacity_tokens": 9999}])
    assert file.reload()["changed"] == ["backends"]
    first.stop()
    time.sleep(0.5)
    gw.admin("POST", "/backends", {"url": first.url})  # merged
    assert gw.admin("GET", f"/backends/{drained}")["state"] == "draining"
    for _ in range(5):
        assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    assert not first.requests


def test_the_command_line_stays_over_the_file(backend: FakeBackend, tmp_path: Path) -> None:
    extra = FakeBackend("extra")
    arguments = ("--policy", "round_robin", "--backend", extra.url)
    with (
        extra,
        GatewayProcess(
            {"backends": [{"url": backend.url}]}, tmp_path, ready=False, arguments=arguments
        ) as gw,
    ):
        file = ConfigFile(gw)
        file.set("policy.name", "least_load")
        file.set("retries.max_retries", 1)
        assert file.reload()["changed"] == ["retries.max_retries"]
        assert gw.admin("GET", "/policy")["name"] == "round_robin"
        assert len(gw.admin("GET", "/backends")) == 2


# streams, queues, index


def test_everything_that_is_under_way_survives(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend, other = start_backend(), start_backend()
    gw = gateway([backend], scheduling={"decode": {"max_requests": 2}})
    file = ConfigFile(gw)
    prompt = text("known", 8000)
    gw.post(CHAT.path, CHAT.body([prompt]))
    matched = gw.explain(CHAT.path, CHAT.body([prompt])).matched_tokens
    assert matched > 0
    before = gw.metrics()
    for each in (backend, other):
        each.behave(itl=0.05, n_tokens=100)
    running = [gw.client(), gw.client()]
    for client in running:
        client.request(CHAT.path, CHAT.stream())
        client.events(2)
    waiting = gw.client()
    waiting.request(CHAT.path, CHAT.stream())
    gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 1)
    for option, value in (
        ("backends", [{"url": backend.url, "capacity_tokens": 400_000}, {"url": other.url}]),
        ("timeouts.idle", 7.0),
        ("index.max_blocks", 1_000_000),
        ("health.interval", 1.0),
        ("policy.params.omega", 0.2),
        ("scheduling.prefill_share", 0.3),
    ):
        file.set(option, value)
    assert len(file.reload()["changed"]) == 6
    after = gw.metrics()
    assert after.total("prefixgate_in_flight") >= 2
    assert after.outcomes == before.outcomes  # counters go on
    asked = {"path": CHAT.path, "body": CHAT.body([prompt])}
    known = gw.admin("POST", "/explain", asked)["match"]["tokens"]
    assert int(known[gw.backend_id(backend.url)]) == matched
    for client in (*running, waiting):
        answer = client.answer()
        assert answer.end is End.FRAMED
        assert answer.stream.done
        assert len(answer.stream.text.split()) == 100
    gw.settles_idle()


def test_streams_are_the_same_byte_for_byte_in_a_storm_of_reloads(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """SIGHUPs and changes of everything, among them wrong ones and another backend."""
    backend, other = start_backend(), start_backend()
    gw = gateway([backend], server=WATCH)
    file = ConfigFile(gw)
    backend.behave(itl=0.01, n_tokens=200)
    with gw.client() as client:
        expected = client.exchange(CHAT.path, CHAT.stream()).body
    clients = [gw.client() for _ in range(8)]
    for client in clients:
        client.request(CHAT.path, CHAT.stream())
    answers: list[bytes] = []

    def read(index: int) -> None:
        answers.append(clients[index].answer().body)

    readers = [threading.Thread(target=read, args=(index,)) for index in range(len(clients))]
    for reader in readers:
        reader.start()
    hangups = 0
    while any(reader.is_alive() for reader in readers):
        hangups += 1
        file.set("scheduling.prefill_share", (hangups % 9 + 1) / 10)
        file.set("index.max_blocks", 1_000_000 + hangups)
        file.set("backends", [{"url": each.url} for each in (backend, other)[: hangups % 2 + 1]])
        if hangups % 3 == 0:
            file.write("server: [")
        gw.signal(signal.SIGHUP)
        time.sleep(0.002)
    assert answers == [expected] * len(clients)
    file.set("backends", [{"url": backend.url}])
    file.reload()
    counts = reloads(gw.metrics())
    assert counts["refused"] > 0
    assert counts["applied"] > 1
    # Those that come while the file is read are answered by one more reading.
    assert sum(counts.values()) <= hangups + 20
    assert len(gw.admin("GET", "/backends")) == 1
    assert "Traceback" not in gw.log


# signals and the watched file


def test_a_hangup_opens_the_logs_anew_and_loads_the_file(
    backend: FakeBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    access, rotated = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"
    gw = gateway([backend], log={"access": str(access)})
    file = ConfigFile(gw)
    gw.post(CHAT.path, CHAT.body(["hello"]))
    _waits(lambda: access.read_bytes())
    access.rename(rotated)
    gw.signal(signal.SIGHUP)
    gw.settles(lambda metrics: reloads(metrics) == {"unchanged": 1})
    _waits(access.exists)
    assert access.stat().st_mode & 0o777 == 0o640
    file.set("log.chains", True)
    gw.signal(signal.SIGHUP)
    gw.settles(lambda metrics: reloads(metrics) == {"unchanged": 1, "applied": 1})
    assert gw.admin("GET", "/config")["log"]["chains"] is True


def test_secrets_that_were_replaced_are_read_again(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    """The config does not change when what it refers to does."""
    names = ("admin", "client", "backend")
    files = {name: tmp_path / name for name in names}

    def write(edition: str) -> None:
        for name, file in files.items():
            file.write_text(f"the-{edition}-secret-of-the-{name}")

    def ask(edition: str) -> int:
        key = f"the-{edition}-secret-of-the-client"
        return gw.http.post(
            CHAT.path, json=CHAT.body(["x"]), headers={"x-api-key": key}
        ).status_code

    def reload(edition: str) -> int:
        bearer = {"authorization": f"Bearer the-{edition}-secret-of-the-admin"}
        return gw.http.post("/admin/v1/config/reload", headers=bearer).status_code

    backend = start_backend()
    write("first")
    settings = {
        "backends": [{"url": backend.url, "api_key": {"file": str(files["backend"])}}],
        "auth": {
            "enabled": True,
            "keys": [{"name": "c", "key": {"file": str(files["client"])}}],
        },
        "admin": {"token": {"file": str(files["admin"])}},
    }
    with GatewayProcess(settings, tmp_path) as gw:
        assert (ask("first"), ask("second")) == (200, 401)
        write("second")
        assert reload("first") == 200
        assert (ask("first"), ask("second")) == (401, 200)
        assert (reload("first"), reload("second")) == (401, 200)
        keys = [request.header(b"authorization") for request in backend.requests]
        assert keys == [
            b"Bearer the-first-secret-of-the-backend",
            b"Bearer the-second-secret-of-the-backend",
        ]
        files["client"].write_text("")
        assert reload("second") == 400
        assert ask("second") == 200


def test_rotation_under_load_loses_no_line(
    backend: FakeBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    access = tmp_path / "access.jsonl"
    gw = gateway([backend], log={"access": str(access)})
    count = 300
    with gw.client() as client:
        for number in range(count):
            client.exchange(CHAT.path, CHAT.body(["hello"]))
            if number % 30 == 29 and access.exists():
                access.rename(tmp_path / f"access.jsonl.{number}")
                gw.signal(signal.SIGHUP)
    assert gw.stop() == 0
    files = list(tmp_path.glob("access.jsonl*"))
    assert len(files) > 1
    assert sum(len(each.read_text().splitlines()) for each in files) == count


def test_a_watched_file_is_loaded_when_it_changes(
    backend: FakeBackend, gateway: StartGateway
) -> None:
    gw = gateway([backend], server=WATCH)
    file = ConfigFile(gw)
    file.set("log.chains", True)
    gw.settles(lambda metrics: reloads(metrics) == {"applied": 1})
    os.utime(file.path)
    time.sleep(0.5)
    assert reloads(gw.metrics()) == {"applied": 1}


def test_a_wrong_file_is_told_once_and_until_it_is_right(
    backend: FakeBackend, gateway: StartGateway
) -> None:
    gw = gateway([backend], server=WATCH)
    file = ConfigFile(gw)
    file.write("server: [")
    current = "prefixgate_config_last_reload_successful"
    gw.settles(lambda metrics: metrics.total(current) == 0)
    time.sleep(0.6)
    assert reloads(gw.metrics()) == {"refused": 1}
    assert gw.log.count("config not reloaded, everything stays as it was") == 1
    file.path.unlink()
    gw.settles(lambda metrics: reloads(metrics) == {"refused": 2})
    file.restore()
    metrics = gw.settles(lambda metrics: metrics.total(current) == 1)
    assert reloads(metrics) == {"refused": 2, "unchanged": 1}


def test_a_half_written_file_is_not_loaded(backend: FakeBackend, gateway: StartGateway) -> None:
    """Each of its beginnings is a config that could work."""
    gw = gateway([backend], server={"watch": 0.5})
    file = ConfigFile(gw)
    with file.path.open("w") as half:
        half.write(yaml.safe_dump(file.tree))
        for number in range(12):
            half.write(f"# {number}\n")
            half.flush()
            time.sleep(0.1)
        half.write("log: {chains: true}\n")
    metrics = gw.settles(lambda metrics: bool(reloads(metrics)))
    assert reloads(metrics) == {"applied": 1}
    assert gw.admin("GET", "/config")["log"]["chains"] is True


def test_a_mounted_config_map_is_followed(
    backend: FakeBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    """Kubernetes writes a new folder and turns a link that the file's own link goes through."""
    gw = gateway([backend], server=WATCH)
    file = ConfigFile(gw)
    mount = tmp_path / "mount"

    def publish(version: str, tree: Any) -> None:
        folder = mount / version
        folder.mkdir(parents=True)
        (folder / "prefixgate.yaml").write_text(yaml.safe_dump(tree))
        link = mount / "..data_tmp"
        link.symlink_to(version)
        link.replace(mount / "..data")

    publish("..1", file.tree)
    file.path.unlink()
    file.path.symlink_to(mount / "..data" / "prefixgate.yaml")
    publish("..2", file.tree | {"retries": {"max_retries": 1}})
    gw.settles(lambda metrics: "applied" in reloads(metrics))
    assert gw.admin("GET", "/config")["retries"]["max_retries"] == 1


def _waits(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("model", "before", "after"),
    [
        ("small", {"small": ["m1"]}, {"small": ["m2"]}),
        ("m2", {"m2": ["m1"]}, {}),
        ("m1", {}, {"m1": ["m2"]}),
    ],
    ids=["another model", "no longer an alias", "an alias from now on"],
)
def test_a_waiting_request_is_sent_under_a_name_that_its_backend_knows(
    start_backend: StartBackend,
    gateway: StartGateway,
    model: str,
    before: dict[str, list[str]],
    after: dict[str, list[str]],
) -> None:
    first, second = start_backend("m1"), start_backend("m2")
    one = {"max_requests": 1}
    gw = gateway([first, second], models=before, scheduling={"decode": one, "prefill": one})
    first.behave(silent_after=1)
    with gw.client() as holder, gw.client() as waits:
        holder.request(CHAT.path, {**CHAT.stream(), "model": model})
        holder.events(1)
        waits.request(CHAT.path, {**CHAT.body(["waits"]), "model": model})
        gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 1)
        file = ConfigFile(gw)
        file.set("models", after)
        file.reload()
        assert waits.answer().status == 200
    assert [request.json["model"] for request in second.requests] == ["m2"]
