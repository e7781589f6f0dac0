"""Group 13, and K20, Q14 and Z12: four gateways that share a Redis, and one that does not."""

from __future__ import annotations

import random
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from loadtests.redis.server import RedisServer
from tests.cases.sharing import (
    TURNS,
    Group,
    all_know,
    all_serve,
    ask_anew,
    in_flight,
    is_shared,
    known,
    knows,
    place,
    shown,
    until,
)
from tests.cases.test_group02_prefix_keys import BLOCK
from tests.cases.test_group10_queues import Peak
from tests.cases.test_group17_stored import Keeper
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import AUTH, GatewayProcess
from tests.harness.routes import CHAT, COMPLETIONS, RESPONSES, text

MAX_BLOCKS = 3000
"""Of the index: so few that some are evicted all the time."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        yield Group(
            stack,
            tmp_path_factory.mktemp("replicas"),
            {"url": redis.url, "timeout": 2.0},
            each=(TURNS, {}, {}, {}),
            index={"max_blocks": MAX_BLOCKS},
            auth=AUTH,
        )


@pytest.fixture
def group(running: Group) -> Iterator[Group]:
    """The same, with nothing set over the admin API."""
    for backend in running.backends:
        backend.reset()
    yield running
    for gw in running.all:
        for part in ("backends", "policy", "scheduling", "keys"):
            gw.admin("DELETE", f"/overrides/{part}")
    states = [gw.admin("GET", "/overrides")["overrides"] for gw in running.all]
    assert states == [[]] * len(states)
    all_serve(running.all, [backend.url for backend in running.backends])


# C01


def test_C01_what_one_learns_all_use(group: Group) -> None:
    apart = is_shared(group, "C01", 24)
    assert apart > 4  # of 16, by chance


def test_C01_turn_after_turn_through_whichever(group: Group) -> None:
    """Each turn's gateway knows what all turns before it, through others, have left behind."""
    choose = random.Random(1)
    for number in range(6):
        turns = [text(f"C01 turns {number}", 2000)]
        home, blocks = place(group.gateways[0], turns), 0
        for turn in range(6):
            blocks = all_know(group.gateways, turns, home, blocks)
            turns += [text(f"answer {turn}", 500), text(f"question {turn}", 500)]
            assert place(choose.choice(group.gateways[1:]), turns) == home
        assert known(group.cut, turns) == {}


def test_C01_a_flush_is_one_of_all(group: Group) -> None:
    turns = [text("C01 flush", 3000)]
    for gw in (group.gateways[0], group.cut):
        place(gw, turns)
    until("all know it", lambda: all(known(gw, turns) for gw in group.all))
    group.gateways[2].admin("POST", "/index/flush", {})
    until("all have forgotten it", lambda: not any(known(gw, turns) for gw in group.gateways))
    assert known(group.cut, turns)
    home = place(group.gateways[0], turns)
    until("it is learnt anew", lambda: all(home in known(gw, turns) for gw in group.gateways))


def test_C01_what_is_in_flight_counts_everywhere(group: Group) -> None:
    """Requests that hang at two backends through one gateway keep the others away from these."""
    slow, other, idle = group.backends
    for backend in (slow, other):
        backend.behave(hang=True)
    first, *others = group.gateways
    with ExitStack() as stack:
        clients = [stack.enter_context(first.client()) for _ in range(60)]
        for number, client in enumerate(clients):
            client.request(CHAT.path, CHAT.stream([text(f"C01 hangs {number}", 4000)]))
        until("they hang", lambda: len(slow.requests) == len(other.requests) == 20)
        until("the idle one is idle", lambda: all(each.complete for each in idle.requests))
        id = first.backend_id(idle.url)

        def choice(gw: GatewayProcess, number: int) -> str:
            return gw.explain(CHAT.path, CHAT.body([text(f"C01 new {number}", 3000)])).backend

        for gw in others:
            until("it has heard of them", lambda gw=gw: choice(gw, 0) == choice(gw, 1) == id)
            assert {choice(gw, number) for number in range(20)} == {id}
        assert [choice(group.cut, number) for number in range(20)].count(id) < 18
    for backend in group.backends:
        backend.behave()
    until("nothing is in flight", lambda: not any(map(in_flight, group.gateways)))


# C03


def test_C03_what_one_is_told_of_backends_all_obey(group: Group) -> None:
    a, *kept = group.backends
    told, *others = group.gateways
    id = told.backend_id(a.url)
    told.admin("POST", f"/backends/{id}/drain")
    all_serve(group.gateways, [backend.url for backend in kept])
    assert ask_anew(group.gateways, 25) == {200: 100}
    assert a.requests == []
    assert ask_anew([group.cut], 30) == {200: 30}
    assert a.requests
    a.reset()
    others[0].admin("DELETE", f"/backends/{id}")
    until("it is gone", lambda: all(len(gw.admin("GET", "/backends")) == 2 for gw in others))
    with FakeBackend() as added:
        others[1].admin("POST", "/backends", {"url": added.url})
        all_serve(group.gateways, [backend.url for backend in (*kept, added)])
        assert ask_anew(group.gateways, 25) == {200: 100}
        assert a.requests == []

        def seen() -> set[bytes | None]:
            ask_anew(group.gateways, 5)
            return {request.header(b"via") for request in added.requests}

        until("all of them use it", lambda: len(seen()) == len(group.gateways))
        assert a.requests == []
        assert len(group.cut.admin("GET", "/backends")) == 3
        assert shown(group.gateways * 5) != shown([group.cut])
        later = group.start()  # it is told what was decided before it came
        assert shown([later, *group.gateways]) == shown(group.gateways)
        # It has its part of the limits, too: nobody waits for the others to give it up.
        assert later.explain(CHAT.path, CHAT.body(["hello"])).backend
        later.stop()


def test_C03_the_policy_is_one_of_all(group: Group) -> None:
    group.gateways[1].admin("PUT", "/policy", {"name": "least_load"})
    until("all have it", lambda: {policy(gw) for gw in group.gateways} == {"least_load"})
    assert policy(group.cut) == "prefix_affinity"
    group.gateways[2].admin("DELETE", "/overrides/policy")
    back = ["round_robin", *["prefix_affinity"] * 3]
    until("each has its own", lambda: [policy(gw) for gw in group.gateways] == back)


def policy(gw: GatewayProcess) -> str:
    return str(gw.admin("GET", "/policy")["name"])


def test_C03_a_limit_that_is_changed_anywhere_holds_everywhere(group: Group) -> None:
    limited = {"name": "made", "limits": {"requests_per_minute": 4}}
    key = {"x-api-key": group.gateways[3].admin("POST", "/keys", limited)["key"]}

    def answers(gw: GatewayProcess) -> int:
        return gw.http.post(CHAT.path, json=CHAT.body(["hello"]), headers=key).status_code

    def know(limit: int) -> bool:
        said = [gw.admin("GET", "/overrides")["overrides"] for gw in group.gateways]
        return all(limit in [entry["value"] for entry in each] for each in said)

    until("all know the limit", lambda: know(4))
    assert Counter(answers(gw) for gw in group.gateways * 3) == {200: 4, 429: 8}
    group.gateways[0].admin("PATCH", "/keys/made", {"limits": {"requests_per_minute": 10}})
    until("all know the new one", lambda: know(10))
    assert Counter(answers(gw) for gw in group.gateways * 3) == {200: 6, 429: 6}
    assert answers(group.cut) == 401
    group.gateways[1].admin("DELETE", "/keys/made")
    for gw in group.gateways:
        until("the key is gone", lambda gw=gw: answers(gw) == 401)


# C04


def test_C04_ids_are_distinct_whoever_sends_them(group: Group) -> None:
    def send(gw: GatewayProcess) -> None:
        with gw.client() as client:
            for number in range(250):
                named = [("x-request-id", "the-clients")] * (number % 2)
                assert client.exchange(CHAT.path, CHAT.body(["x"]), headers=named).status == 200

    with ThreadPoolExecutor() as pool:
        list(pool.map(send, group.gateways))
    sent = [each for backend in group.backends for each in backend.requests]
    ids = {each.header(b"x-request-id") for each in sent}
    assert len(sent) == len(ids) == 1000
    assert b"the-clients" not in ids


# Q14


def test_Q14_choosing_and_reserving_is_one_step_over_processes(group: Group) -> None:
    """Two backends that take one request each; two ask at the same time, at two gateways."""
    *two, third = group.backends
    gateways = [*group.gateways[1:3], group.cut]
    limits = {"decode": {"max_requests": 1}, "prefill": {"max_requests": 1}}
    for gw in (group.gateways[3], group.cut):
        gw.admin("POST", f"/backends/{gw.backend_id(third.url)}/drain")
        gw.admin("PATCH", "/scheduling", limits)
    all_serve(group.all, [backend.url for backend in two])
    for gw in group.gateways:
        until("it has the limit", lambda gw=gw: max_requests(gw) == 1)
    for backend in two:
        backend.behave(ttft=0.01)
    # A limit that has just been lowered holds for all together once it is shared out anew.
    until("the slots are shared out", lambda: max(peaks(two, gateways[:2], 5)) == 1)
    assert max(peaks(two, gateways[:2], 25)) == 1
    for gw in group.gateways:
        assert in_flight(gw) == 0
    # The control: each of these two keeps to the limit by itself.
    assert max(peaks(two, gateways[1:], 25)) == 2


def max_requests(gw: GatewayProcess) -> int:
    return int(gw.admin("GET", "/scheduling")["decode"]["max_requests"])


def peaks(
    backends: Sequence[FakeBackend], gateways: Sequence[GatewayProcess], rounds: int
) -> list[int]:
    """The most that each backend had at once, while each gateway is asked as often, at the same
    time as the others."""
    seen = [Peak(backend) for backend in backends]
    together = threading.Barrier(len(gateways))

    def ask(gw: GatewayProcess) -> None:
        with gw.client() as client:
            for _ in range(rounds):
                together.wait(20.0)
                assert client.exchange(CHAT.path, CHAT.stream()).stream.done

    with ThreadPoolExecutor() as pool:
        list(pool.map(ask, gateways))
    return [peak.most for peak in seen]


# Z12


def test_Z12_all_write_and_evict_at_the_same_time(group: Group) -> None:
    """Conversations that have their beginnings in common, more than an index has room for."""
    roots = [text(f"Z12 root {number}", 2000) for number in range(8)]
    ends = threading.Event()

    def write(gw: GatewayProcess) -> int:
        choose, count = random.Random(gw.port), 0
        with gw.client() as client:
            while not ends.is_set():
                branch = text(f"Z12 branch {choose.randrange(40)}", 3000)
                body = CHAT.body([choose.choice(roots), branch, secrets.token_hex(200)])
                assert client.exchange(CHAT.path, body).status == 200
                count += 1
        return count

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write, gw) for gw in group.all]
        until("all evict", lambda: all(evicted(gw) > MAX_BLOCKS // 3 for gw in group.all))
        ends.set()
        assert all(writer.result() > 50 for writer in writers)
    # What was touched last is known to all, where it is.
    last = [text("Z12 last", 3000)]
    for number, gw in enumerate(group.gateways):
        turns = [*last, "answer", f"question {number}"]
        knows(group.gateways, turns, place(gw, turns))
    assert known(group.cut, last) == {}
    for gw in group.gateways:
        index = gw.admin("GET", "/index")
        assert index["held_blocks"] + index["dead_blocks"] <= index["max_blocks"] == MAX_BLOCKS
        assert index["held_blocks"] == sum(
            holding["blocks"] for holding in index["backends"].values()
        )
        assert in_flight(gw) == 0
        assert "Traceback" not in gw.log


def evicted(gw: GatewayProcess) -> int:
    return int(gw.admin("GET", "/index")["evicted_blocks"])


# K20


def test_K20_last_block_counted_and_colons_in_addresses(group: Group) -> None:
    first, second, *_ = group.gateways
    try:
        backend = FakeBackend("six", host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with backend:
        keeper = Keeper(backend, "six")
        first.admin("POST", "/backends", {"url": backend.url})
        all_serve(group.gateways, [each.url for each in (*group.backends, backend)])
        id = second.backend_id(backend.url)
        for prompt in (text("K20", 4 * BLOCK), list(range(BLOCK))):
            body = {"model": "six", "prompt": prompt}
            assert first.post(COMPLETIONS.path, body).status_code == 200
            until(
                "the other one knows it",
                lambda body=body: second.explain(COMPLETIONS.path, body).blocks == {id: 4},
            )
            answer = second.post(COMPLETIONS.path, body)
            assert answer.headers["x-prefixgate-backend"] == id
            assert answer.headers["x-prefixgate-matched-tokens"] == str(BLOCK)
        # Who keeps a response is written into Redis too.
        made = first.post(RESPONSES.path, RESPONSES.body(["hello"]) | {"model": "six"}).json()["id"]
        assert made in keeper.kept
        assert second.http.get(f"/v1/responses/{made}").json() == {"id": made}
