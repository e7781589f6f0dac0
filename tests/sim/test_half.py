"""Simulated prefill and decode engines as processes, held against the reference client."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from loadtests.sim.cli import main
from tests.harness import sse
from tests.harness.gateway_process import free_port
from tests.harness.pd.reference import Handover, Prefill
from tests.harness.routes import CHAT, COMPLETIONS, Route, text
from tests.sim.test_server import await_that, healthy

PROTOCOLS = ("nixl_pull", "nixl_push", "mooncake", "sglang", "trtllm")
LEASE = 1.5
client = httpx.Client(trust_env=False, verify=False, timeout=20.0)


@dataclass
class Pair:
    protocol: str
    prefill: str
    decode: str
    texts: int = 0

    def handover(self, route: Route = CHAT, **options: Any) -> Handover:
        self.texts += 1
        extra = options.pop("extra", {})
        body = {**route.body([text(f"p{self.texts}", 400)]), "max_tokens": 5, **extra}
        host, port = "127.0.0.1", int(self.prefill.rpartition(":")[2])
        known = Prefill(self.prefill, f"sim-{host}-{port}", host, port)
        return Handover(self.protocol, known, self.decode, route.path, body, **options)

    def metric(self, url: str, name: str) -> float:
        page = client.get(f"{url}/metrics").text
        lines = [line for line in page.splitlines() if line.startswith(f"vllm:{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    @property
    def used(self) -> float:
        """Share of the prefill engine's blocks that are not free."""
        return self.metric(self.prefill, "kv_cache_usage_perc")


def start(stack: ExitStack, protocol: str, *options: str) -> Pair:
    urls = []
    for role in ("prefill", "decode"):
        port = free_port()
        command = [sys.executable, "-m", "loadtests.sim", "--port", f"{port}", "--model", "m"]
        command += ["--role", role, "--pd", protocol, "--speed", "20", *options]
        process = subprocess.Popen(command)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        urls.append(f"http://127.0.0.1:{port}")
    for url in urls:
        await_that(lambda url=url: healthy(url))
    return Pair(protocol, *urls)


@pytest.fixture(scope="module", params=PROTOCOLS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        options = ("--kv-lease", f"{LEASE}", "--kv-tokens", "8192", "--pd-timeout", "0.5")
        yield start(stack, request.param, *options)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS], ids=lambda route: route.name)
def test_the_prompt_is_computed_once_and_its_blocks_are_given_back(
    pair: Pair, route: Route
) -> None:
    before = pair.metric(pair.decode, "external_prefix_cache_hits_total")
    first, second = pair.handover(route).run()
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["usage"]["completion_tokens"] == 1
    usage = second.json()["usage"]
    assert usage["completion_tokens"] == 5
    come = pair.metric(pair.decode, "external_prefix_cache_hits_total") - before
    assert come == usage["prompt_tokens"] - 1
    assert usage["prompt_tokens_details"]["cached_tokens"] == come
    assert pair.used == 0


def test_the_text_is_that_of_one_engine(pair: Pair) -> None:
    streamed = {"stream": True}
    one = pair.handover(extra=streamed)
    told = sse.read(one.run()[1].content)
    assert told.errors == []
    if pair.protocol == "sglang":
        assert client.post(pair.prefill + CHAT.path, json=one.body).status_code == 400
        return
    alone = client.post(pair.prefill + CHAT.path, json=one.body)
    assert sse.read(alone.content).text == told.text


def test_what_was_read_is_not_read_again(pair: Pair) -> None:
    one = pair.handover()
    first, _ = one.run()
    again = one.send_decode(first)
    assert again.status_code == 500
    assert "before" in again.json()["error"]["message"]


def test_a_key_is_used_once(pair: Pair) -> None:
    if pair.protocol in ("nixl_pull", "trtllm"):
        pytest.skip("the engine makes it")
    one = pair.handover(id="u" * 8, room=7)
    one.run()
    assert one.send_prefill().status_code == 500


def test_another_prompt_is_not_that_one(pair: Pair) -> None:
    def other(body: dict[str, Any]) -> None:
        body["messages"] = [{"role": "user", "content": "another"}]
        if "prompt_token_ids" in body:
            body["prompt_token_ids"] = [1, 2, 3]

    assert pair.handover(edit_decode=other).run()[1].status_code == 500


def test_parameters_must_be_as_given_out(pair: Pair) -> None:
    def spoil(body: dict[str, Any]) -> None:
        params = body.get("kv_transfer_params") or body["disaggregated_params"]
        for name in ("remote_engine_id", "ctx_dp_rank"):
            if name in params:
                params[name] = "another"

    if pair.protocol == "sglang":
        pytest.skip("it has none")
    assert pair.handover(edit_decode=spoil).run()[1].status_code == 500


def test_a_decode_leg_that_never_comes_costs_the_lease(pair: Pair) -> None:
    await_that(lambda: pair.used == 0)
    expired = pair.metric(pair.prefill, "nixl_num_kv_expired_reqs_total")
    one = pair.handover()
    first = one.send_prefill()
    assert first.status_code == 200
    assert pair.used > 0
    await_that(lambda: pair.used == 0)
    assert pair.metric(pair.prefill, "nixl_num_kv_expired_reqs_total") == expired + 1
    assert one.send_decode(first).status_code == 500


def test_a_prefill_leg_that_never_comes_is_an_error(pair: Pair) -> None:
    if pair.protocol in ("nixl_pull", "trtllm"):
        pytest.skip("there is nothing to show without one")
    for stream in (False, True):
        answer = pair.handover(extra={"stream": stream}).send_decode()
        assert "nothing came" in answer.text
        assert (answer.status_code == 200) == stream


def test_a_leg_at_the_wrong_engine_is_refused(pair: Pair) -> None:
    if pair.protocol == "sglang":
        pytest.skip("its legs look alike")
    one = pair.handover()
    wrong = Prefill(pair.decode, one.prefill.engine_id, one.prefill.host, one.prefill.port)
    one.prefill = wrong
    assert one.send_prefill().status_code == 400


def test_role_and_protocol_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "prefill"]) == 2
    assert main(["--pd", "sglang"]) == 2
    assert "go together" in capsys.readouterr().err


def test_a_transfer_takes_its_time_and_a_client_that_leaves_it_gives_the_blocks_back() -> None:
    """400 characters are 100 tokens of 131,072 bytes: a second and more at 0.1 Gbit/s."""
    with ExitStack() as stack:
        pair = start(stack, "nixl_pull", "--link-gbps", "0.1")
        one = pair.handover()
        first = one.send_prefill()
        began = time.monotonic()
        assert one.send_decode(first).status_code == 200
        assert time.monotonic() - began > 1.0
        one = pair.handover()
        first = one.send_prefill()
        assert pair.used > 0
        one.timeout = 0.3
        with pytest.raises(httpx.TimeoutException):
            one.send_decode(first)
        await_that(lambda: pair.used == 0)
        assert pair.metric(pair.prefill, "nixl_num_kv_expired_reqs_total") == 0
