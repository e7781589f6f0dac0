"""A run in which everything happens that can happen to a request, and what is seen of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gateway.secrets import hash_key
from loadtests.redis.server import RedisServer
from tests.disagg.fleet import gateway_for
from tests.harness.behaviour import Cut
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess, Metrics
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.raw import Answer, RawClient
from tests.harness.routes import ALL, CHAT, STREAMING, Json, text
from tests.process.full_listener import FullListener

SETTINGS: Json = {
    "server": {"body_timeout": 0.5, "max_body": 100_000},
    "scheduling": {"decode": {"max_requests": 2, "max_waiting": 1, "max_wait": 0.8}},
    "timeouts": {"connect": 0.8, "first_byte": 0.8, "idle": 0.8},
    # Probes out of turn only, so that the script alone decides what happens when.
    "health": {"interval": 600.0, "load_interval": 0.1},
    "breaker": {"failures": 3, "share": 1.0},
}
KEY = "pg-a-key-that-nobody-can-guess"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"
ERROR_EVENT = b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n'


def to(model: str, body: Json) -> Json:
    return body | {"model": model}


def stream(model: str, prompt: str = "hello") -> Json:
    return to(model, CHAT.stream([prompt]))


def plain(model: str, prompt: str = "hello") -> Json:
    return to(model, CHAT.body([prompt]))


class Script:
    """Attributes:
    expected: how requests should have ended, by outcome.
    left: clients that went away, by where their request was.
    moved: metric families that had a sample other than 0 at some scrape.
    families: all of them.
    forgotten: routed requests of backends that were removed since.
    """

    def __init__(self, directory: Path) -> None:
        self.three = [FakeBackend("m") for _ in range(3)]
        self.solo, self.dead = FakeBackend("solo"), FakeBackend("dead")
        self.full, self.passing = FakeBackend("full"), FakeBackend("passing")
        self.solo.tells()
        entries: list[Json] = [{"url": backend.url} for backend in (*self.three, self.dead)]
        entries.append({"url": self.solo.url, "capacity_tokens": 2000})
        entries.append({"url": self.full.url})
        self.listed = directory / "listed.yaml"
        source: Json = {"file": [{"path": str(self.listed), "interval": 0.1}]}
        self.gw = GatewayProcess({**SETTINGS, "backends": entries, "discovery": source}, directory)
        self.directory = directory
        self.expected: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.moved: set[str] = set()
        self.families: set[str] = set()
        self.forgotten = 0.0

    def close(self) -> None:
        self.gw.stop()
        for backend in (*self.three, self.solo, self.dead, self.full, self.passing):
            backend.stop()

    def scrape(self) -> Metrics:
        return self._note(self.gw.http.get("/metrics").text)

    def _note(self, page: str) -> Metrics:
        for family in text_string_to_metric_families(page):
            self.families.add(family.name)
            samples = [s for s in family.samples if not s.name.endswith("_created")]
            if any(sample.value for sample in samples):
                self.moved.add(family.name)
        return Metrics(page)

    # one request

    def ends(self, outcome: str, count: int = 1) -> None:
        """So many requests have ended, or are about to; none of them otherwise."""
        self.expected[outcome] += count
        total = sum(self.expected.values())
        seen = self.gw.settles(lambda metrics: sum(metrics.outcomes.values()) >= total).outcomes
        assert seen == dict(self.expected)

    def ask(
        self, outcome: str, status: int, body: Any, path: str = CHAT.path, **options: Any
    ) -> Answer:
        with self.gw.client() as client:
            answer = client.exchange(path, body, **options)
        assert answer.status == status, answer.body
        self.ends(outcome)
        return answer

    def decides(self, reason: str, body: Json, **headers: str) -> None:
        answer = self.ask("ok", 200, body, headers=list(headers.items()))
        assert answer.header("x-prefixgate-decision") == reason

    def goes_wrong(self, outcome: str, status: int, body: Json, /, **behaviour: Any) -> None:
        """At `solo`; then it serves once, because failures in a row would eject it."""
        self.solo.next(**behaviour)
        self.ask(outcome, status, body)
        self.ask("ok", 200, plain("solo"))

    def open(self, body: Json, events: int = 0) -> RawClient:
        client = self.gw.client()
        client.request(CHAT.path, body)
        if events:
            client.events(events)
        return client

    def leaves(self, phase: str, *clients: RawClient) -> None:
        for client in clients:
            client.close()
        self.left[phase] += len(clients)
        self.ends("cancelled", len(clients))

    # the scenes, in this order

    def play(self) -> None:
        self.everything_works()
        self.engines_tell_their_load()
        self.policies_decide()
        self.clients_err()
        self.engines_fail()
        self.time_runs_out()
        self.queues_fill()
        self.the_gate_closes()
        self.clients_leave()
        self.backends_go()
        self.a_list_is_out_of_date()
        self.the_config_is_read_again()
        self.scrape()
        self.keys_are_limited()
        self.replicas_share()
        self.prompts_are_handed_over()

    def everything_works(self) -> None:
        for route in ALL:
            self.ask("ok", 200, route.body(["hello"]), route.path)
        for route in STREAMING:
            assert self.ask("ok", 200, route.stream(["hello"]), route.path).stream.events
        self.ask("ok", 200, to("solo", CHAT.body(["hello"])))
        self.ask("ok", 200, {"model": "m"}, "/v1/unknown")
        for backend in (*self.three, self.solo, self.dead, self.full):
            backend.pages["/v1/things"] = b"{}"
        self.ask("ok", 200, None, "/v1/things", method="GET")
        self.ask("ok", 200, plain("m", text("long", 12_000)))
        for number in range(3):  # more than fits
            self.ask("ok", 200, plain("solo", text(f"evicted {number}", 6000)))

    def engines_tell_their_load(self) -> None:
        self.solo.tells(running=1, waiting=1, kv_use=0.125)
        self.gw.settles(lambda m: m.total("prefixgate_backend_reported_kv_use") == 0.125)
        self.scrape()
        del self.solo.pages["/metrics"]
        self.gw.settles(lambda m: m.total("prefixgate_backend_load_failures_total") > 0)
        self.solo.tells()
        self.gw.settles(
            lambda m: (
                m.total("prefixgate_backend_reported_running") == 0
                and m.total("prefixgate_backend_load_age_seconds") < 0.1
            )
        )

    def policies_decide(self) -> None:
        prompt = text("shared", 6000)
        self.decides("load", plain("m", prompt))
        self.decides("prefix", plain("m", prompt))
        self.decides("only", plain("solo", prompt))
        self.home_is_full(prompt)
        self.waits_pay_for_a_copy()
        for policy, reason in (
            ("round_robin", "rotation"),
            ("consistent_hash", "hash"),
            ("least_load", "load"),
            ("power_of_two", "load"),
            ("session", "sessionless"),
        ):
            self.gw.admin("PUT", "/policy", {"name": policy})
            self.decides(reason, plain("m", prompt))
        self.decides("session", plain("m", prompt), **{"x-session-id": "s"})
        self.gw.admin("PUT", "/policy", {"name": "prefix_affinity"})
        # What engines say was cached, against what was predicted: nothing, then everything.
        for cached in (900, 0):
            usage = {
                "prompt_tokens": 1000,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            for backend in self.three:
                backend.behave(body=json.dumps({"usage": usage}).encode())
            self.ask("ok", 200, plain("m", text("reported", 4000)))
        for backend in self.three:
            backend.behave()

    def home_is_full(self, prompt: str) -> None:
        """A diversion: it must count as one and as nothing else."""
        for backend in self.three:
            backend.behave(itl=0.1, n_tokens=1000)
        holding = [self.open(stream("m", prompt), 2) for _ in range(2)]
        for backend in self.three:
            backend.behave()
        before = self.scrape()
        self.decides("spill", plain("m", prompt))
        after = self.scrape()
        assert after.by("prefixgate_decisions_total", "reason")["spill"] == 1
        for name in ("prefixgate_matched_tokens_total", "prefixgate_reported_cached_tokens_total"):
            assert after.total(name) == before.total(name)
        self.leaves("answer", *holding)

    def waits_pay_for_a_copy(self) -> None:
        """A stream that runs where a prefix is makes each request for it a little slower."""
        prompt = text("hot", 6000)
        self.gw.admin("PUT", "/policy", {"name": "prefix_affinity", "params": {"omega": 5.0}})
        for backend in self.three:
            backend.behave(itl=0.1, n_tokens=1000)
        holding = self.open(stream("m", prompt), 2)
        for backend in self.three:
            backend.behave()
        reasons = []
        while "copy" not in reasons:
            answer = self.ask("ok", 200, plain("m", prompt))
            reasons.append(answer.header("x-prefixgate-decision"))
            assert len(reasons) <= 200
        assert set(reasons[:-1]) == {"prefix"}
        self.leaves("answer", holding)

    def clients_err(self) -> None:
        self.ask("client_error", 400, b"{")
        self.ask("client_error", 400, {"messages": []})
        self.ask("client_error", 404, plain("nobody"))
        self.ask("client_error", 413, b"x" * 200_000)
        self.ask("client_error", 404, {"model": "solo"}, "/v1/none", method="GET")
        with self.gw.client() as client:
            client.send(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
            assert client.answer().status == 408
        self.ends("client_error")
        with self.gw.client() as client:
            client.send(b"TRACE / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.answer().status == 405

    def engines_fail(self) -> None:
        self.goes_wrong("client_error", 422, plain("solo"), status=422)
        self.goes_wrong("client_error", 400, stream("solo"), status=400)
        self.goes_wrong("backpressure", 429, plain("solo"), status=429)
        self.goes_wrong("backpressure", 503, stream("solo"), status=503)
        self.goes_wrong("upstream_error", 500, plain("solo"), status=500)
        self.goes_wrong("upstream_error", 200, stream("solo"), cut_after=3)
        self.goes_wrong("upstream_error", 502, plain("solo"), body=b"x" * 900, cut_after=300)
        half = (b"HTTP/1.1 200 OK\r\ncontent-", Cut.FIN)
        self.goes_wrong("upstream_error", 502, plain("solo"), script=half)
        self.goes_wrong("upstream_error", 502, plain("solo"), script=(b"banana\r\n\r\n",))
        error = EVENTS % (len(ERROR_EVENT), ERROR_EVENT)
        self.goes_wrong("upstream_error", 200, stream("solo"), script=(error,))
        # A kept connection that turns out dead is dialled anew, but only once.
        self.goes_wrong("ok", 200, plain("solo"), script=(Cut.RST,))
        self.solo.next(script=(Cut.RST,))
        self.goes_wrong("upstream_error", 502, plain("solo"), script=(Cut.RST,))
        # Where there are others they are tried, and the last refusal is passed on.
        for backend in self.three:
            backend.next(status=503)
        self.ask("backpressure", 503, plain("m"))
        assert self.scrape().total("prefixgate_backend_busy") >= 3
        for backend in self.three:
            backend.queued.clear()

    def time_runs_out(self) -> None:
        self.goes_wrong("timeout", 504, plain("solo"), hang=True)
        self.goes_wrong("timeout", 200, stream("solo"), silent_after=3)
        self.full.stop()
        with FullListener(self.full.port):
            self.ask("timeout", 504, plain("full"))
            client = self.open(plain("full"))
            self.gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 1)
            self.leaves("connect", client)

    def queues_fill(self) -> None:
        self.solo.behave(itl=0.1, n_tokens=1000)
        running = [self.open(stream("solo"), 2) for _ in range(2)]
        waiting = self.open(stream("solo"))
        self.gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 1)
        self.scrape()
        self.ask("rejected", 429, stream("solo"))
        self.leaves("queue", waiting)
        self.ask("rejected", 503, stream("solo"))
        self.leaves("answer", *running)
        self.solo.behave()

    def the_gate_closes(self) -> None:
        count = len(self.solo.requests)
        self.solo.next(hang=True)
        running = self.open(stream("solo", text("much prefill", 90_000)))
        self.solo.wait_requests(count + 1)
        held = self.open(stream("solo"))
        self.gw.settles(lambda metrics: metrics.total("prefixgate_queue_held") == 1)
        assert self.scrape().total("prefixgate_gate_closed") == 1
        self.leaves("queue", held)
        self.leaves("answer", running)

    def clients_leave(self) -> None:
        client = self.gw.client()
        client.send(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        self.leaves("body", client)
        count = len(self.solo.requests)
        self.solo.next(hang=True)
        client = self.open(stream("solo", text("booked", 4000)))
        self.solo.wait_requests(count + 1)
        assert self.scrape().total("prefixgate_index_bookings") == 1
        self.leaves("answer", client)

    def backends_go(self) -> None:
        gw = self.gw
        self.dead.stop()
        self.ask("upstream_error", 502, plain("dead"))
        gw.settles(lambda metrics: metrics.total("prefixgate_backend_ejections_total") == 1)
        self.ask("rejected", 503, plain("dead"))
        added = gw.admin("POST", "/backends", {"url": self.passing.url})["id"]
        gw.settles(lambda metrics: metrics.total("prefixgate_backend_up", backend=added) == 1)
        self.ask("ok", 200, plain("passing"))
        self.passing.behave(itl=0.05, n_tokens=10)
        staying = self.open(stream("passing"), 2)
        metrics = self.scrape()
        assert adds_up(metrics)
        self.forgotten = metrics.total("prefixgate_routed_requests_total", backend=added)
        gw.admin("DELETE", f"/backends/{added}")
        assert staying.answer().stream.done
        staying.close()
        self.ends("ok")
        self.ask("client_error", 404, plain("passing"))

    def a_list_is_out_of_date(self) -> None:
        """It could not be read at all before, and now names what is gone."""
        assert self.scrape().total("prefixgate_discovery_failures_total") > 0
        self.listed.write_text(json.dumps({"backends": [{"url": self.dead.url}]}))
        self.gw.settles(lambda metrics: metrics.total("prefixgate_discovery_unreachable") == 1)

    def the_config_is_read_again(self) -> None:
        assert self.gw.admin("POST", "/config/reload") == {"changed": [], "needs_restart": []}

    def keys_are_limited(self) -> None:
        """By a gateway of its own: nothing else here has a key."""
        entry: Json = {"name": "team", "hash": hash_key(KEY), "limits": {"requests_per_minute": 1}}
        auth: Json = {"enabled": True, "keys": [entry], "open_metrics": True}
        away: Json = {"url": "redis://127.0.0.1:1"}  # limits are its own then
        settings: Json = {"auth": auth, "redis": away, "backends": [{"url": self.solo.url}]}
        with GatewayProcess(settings, self.directory) as gw:
            statuses = [
                gw.http.post(CHAT.path, json=plain("solo"), headers=headers).status_code
                for headers in ({}, {"x-api-key": KEY}, {"x-api-key": KEY})
            ]
            assert statuses == [401, 200, 429]
            self._note(gw.http.get("/metrics").text)

    def prompts_are_handed_over(self) -> None:
        """And are not, and are for nobody, which the engine can be told or not."""
        with (
            Pools("nixl_pull") as pools,
            gateway_for(
                pools,
                self.directory,
                retries={"max_retries": 0},
                disagg={"models": {"m": {"bytes_per_token": 1000}}},
            ) as gateway,
        ):
            prefill, decode = pools.prefills[0], pools.decodes[0]
            prefill.next()
            prefill.next(status=500)
            for body in (stream("m"), plain("m")):
                assert gateway.post(CHAT.path, body).status_code == 200
            decode.next(hang=True)
            with gateway.client() as client:
                client.request(CHAT.path, plain("m"))
                decode.wait(lambda: any(leg.part is Part.DECODE for leg in decode.legs[1:]))
            gateway.settles(lambda m: m.total("prefixgate_pd_released_total") == 1)
            decode.stop()
            assert gateway.post(CHAT.path, plain("m")).status_code == 502
            gateway.settles(lambda m: m.total("prefixgate_pd_orphaned_total") == 1)
            self._note(gateway.http.get("/metrics").text)

    def replicas_share(self) -> None:
        """Two gateways of their own, until Redis has lost everything and was told it again."""
        away: Json = {"redis": {"url": "redis://127.0.0.1:1"}, "backends": [{"url": self.solo.url}]}
        with GatewayProcess(away, self.directory) as gw:
            gw.settles(lambda metrics: metrics.total("prefixgate_allotments_guessed") > 0)
            self._note(gw.http.get("/metrics").text)
        with RedisServer() as redis:
            there = {**away, "redis": {"url": redis.url}, "replication": {"snapshot_interval": 1.0}}
            with (
                GatewayProcess(there, self.directory) as one,
                GatewayProcess(there, self.directory) as two,
            ):
                body = plain("solo", "long enough to be shared " * 40)
                assert one.http.post(CHAT.path, json=body).status_code == 200
                two.settles(lambda m: m.total("prefixgate_shared_uses_total", result="applied") > 0)
                two.settles(lambda m: m.total("prefixgate_snapshot_age_seconds") > 0)
                # Of the next one, once all is lost, there may be nothing yet at the end.
                self._note(two.http.get("/metrics").text)
                # What comes after Redis has lost everything then seems to come before this.
                late = "9999999999999-0"
                redis.command("XADD", "{prefixgate:prefixgate}:feed", late, "b", "no batch")
                redis.command("CLIENT", "KILL", "TYPE", "normal")
                two.settles(lambda m: m.total("prefixgate_redis_reconnects_total") > 0)
                two.settles(lambda m: m.total("prefixgate_feed_lost_total", where="version") > 0)
                redis.command("FLUSHALL")
                for gw in (one, two):
                    gw.settles(lambda m: m.total("prefixgate_feed_rewinds_total") > 0, 20.0)
                    self._note(gw.http.get("/metrics").text)


def adds_up(metrics: Metrics, forgotten: float = 0.0) -> bool:
    """Whether decisions are as many as routed requests."""
    decided = metrics.total("prefixgate_decisions_total")
    return decided == metrics.total("prefixgate_routed_requests_total") + forgotten
