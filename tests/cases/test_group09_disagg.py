"""Group 9: what prefill and decode engines are sent, for each protocol."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases.pd import CAPPED, Site, original, says
from tests.harness.behaviour import Framing
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import ROOT
from tests.harness.inside import send
from tests.harness.pd.leg import Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.reference import CONCURRENT, PROTOCOLS
from tests.harness.pd.settings import settings
from tests.harness.raw import Answer
from tests.harness.routes import CHAT, COMPLETIONS, RESPONSES, Route

TEXT = "t0 t1 t2 t3 t4 "
SHORT = 3.0


@pytest.fixture(scope="module", params=PROTOCOLS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with ExitStack() as stack:
        roomy = {"prefill": {"max_requests": 512}, "decode": {"max_requests": 512}}
        yield Site(
            stack,
            tmp_path_factory.mktemp("gw"),
            request.param,
            admin={"token": "secret"},
            scheduling=roomy,
        )


@pytest.fixture
def site(shared: Site) -> Site:
    shared.pools.reset()
    return shared


LENGTHS: list[tuple[Route, dict[str, int]]] = [
    (CHAT, {"max_tokens": 50}),
    (CHAT, {"max_completion_tokens": 50}),
    (CHAT, {"max_tokens": 50, "max_completion_tokens": 60}),
    (CHAT, {}),
    (COMPLETIONS, {"max_tokens": 50}),
    (COMPLETIONS, {}),
    (RESPONSES, {"max_output_tokens": 50}),
    (RESPONSES, {}),
]


@pytest.mark.parametrize(
    ("route", "given"),
    LENGTHS,
    ids=lambda part: part.name if isinstance(part, Route) else "+".join(part) or "none",
)
def test_p01_the_prefill_leg_is_capped_and_the_decode_leg_is_not(
    site: Site, route: Route, given: dict[str, int]
) -> None:
    body = site.body(route, **given)
    answer = site.ask(body, route.path)
    if site.protocol in ("sglang", "trtllm") and route is RESPONSES:
        # They hand nothing over there.
        assert answer.status == (400 if site.protocol == "sglang" else 200)
        assert [leg.limits for leg in site.decode.legs] == [given] * (answer.status == 200)
        assert site.legs(Part.PREFILL) == []
        return
    assert answer.status == 200
    prefill, decode = site.pair()
    if site.protocol in CAPPED:
        assert set(prefill.limits.values()) == {1}
        assert prefill.limits.keys() >= given.keys()
    else:
        assert prefill.limits == given
    assert decode.limits == given
    replaced = site.protocol == "trtllm" and route is COMPLETIONS
    wanted = [(k, v) for k, v in body.items() if not (replaced and k == "prompt")]
    assert [(k, v) for k, v in original(decode) if not (replaced and k == "prompt")] == wanted
    assert site.pools.complaints == []


def test_p03_the_rest_of_the_prefill_body_is_sanitised(site: Site) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = site.body(
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=50,
        min_tokens=16,
        stop=["END"],
        logprobs=True,
        top_logprobs=2,
        response_format={"type": "json_object"},
        tools=[tool],
    )
    answer = site.ask(body)
    assert says(answer) == TEXT
    prefill, decode = site.pair()
    assert site.protocol == "sglang" or prefill.body.get("stream") is not True
    assert prefill.body["tools"] == [tool]
    assert original(decode) == list(body.items())
    assert site.pools.complaints == []


@pytest.mark.parametrize("extra", [{"n": 4}, {"prompt_logprobs": 1}], ids=str)
def test_p03_p09_what_cannot_be_carried_goes_to_one_engine(
    site: Site, extra: dict[str, Any]
) -> None:
    body = site.body(**extra)
    answer = site.ask(body)
    assert site.legs(Part.PREFILL) == []
    assert site.legs(Part.DECODE) == []
    if site.protocol == "sglang":
        assert answer.status == 400
        assert site.pools.engines[0].legs == []
        assert answer.json["error"]["message"]
        assert site.legs(Part.WHOLE) == []
        return
    assert says(answer) == TEXT
    [whole] = site.legs(Part.WHOLE)
    assert list(whole.body.items()) == list(body.items())
    assert site.pools.complaints == []


@pytest.mark.parametrize("extra", [{"echo": True}, {"prompt": ["one", "two"]}], ids=str)
def test_p09_echo_and_batches_go_to_one_engine(site: Site, extra: dict[str, Any]) -> None:
    answer = site.ask(site.body(COMPLETIONS) | extra, COMPLETIONS.path)
    if site.protocol == "sglang" and "prompt" in extra:
        assert answer.status == 200
        assert site.pools.complaints == []
        prefill, _ = site.pair()
        assert len(set(prefill.body["bootstrap_room"])) == 2
        return
    assert site.legs(Part.PREFILL) == []
    if site.protocol == "sglang":
        assert answer.status == 400
        return
    assert answer.status == 200
    assert len(site.legs(Part.WHOLE)) == 1


def test_p15_ids_are_the_gateways_own_and_equal_on_both_legs(site: Site) -> None:
    headers = [("x-request-id", "mine")]
    bodies = [site.body() for _ in range(24)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda body: site.ask(body, headers=headers), bodies))
    assert [says(answer) for answer in answers] == [TEXT] * 24
    prefills = [leg.id for leg in site.legs(Part.PREFILL)]
    decodes = [leg.id for leg in site.legs(Part.DECODE)]
    assert sorted(prefills) == sorted(decodes)
    assert len(set(prefills)) == 24
    assert "mine" not in prefills
    assert site.pools.complaints == []
    rooms = [leg.body.get("bootstrap_room") for leg in site.legs(Part.PREFILL)]
    assert len(set(rooms)) == (24 if site.protocol == "sglang" else 1)


def test_p15_two_gateways_make_no_two_ids_alike(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = Site(stack, tmp_path, "sglang")
        two = Site(stack, tmp_path, "sglang")
        for site in (one, two):
            for _ in range(10):
                assert says(site.ask(site.body())) == TEXT
        legs = [*one.legs(Part.PREFILL), *two.legs(Part.PREFILL)]
        assert len({leg.id for leg in legs}) == 20
        assert len({leg.body["bootstrap_room"] for leg in legs}) == 20


def test_v01_clients_cannot_choose_the_internal_target(site: Site) -> None:
    with FakeBackend() as trap:
        address = f"127.0.0.1:{trap.port}"
        headers = [
            ("x-prefiller-url", trap.url),
            ("x-prefiller-host-port", address),
            ("x-gateway-destination-endpoint", address),
            ("x-data-parallel-rank", "7"),
        ]
        foreign = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": trap.port}
        bad = {
            "kv_transfer_params": {**foreign, "remote_engine_id": "theirs"},
            "disaggregated_params": {
                "request_type": "generation_only",
                "ctx_info_endpoint": address,
            },
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": trap.port,
            "bootstrap_room": 5,
        }
        for extra in ({}, bad):
            site.pools.reset()
            answer = site.ask(site.body(**extra), headers=headers)
            assert answer.status in (200, 400)
            for engine in site.pools.engines:
                for leg in engine.legs:
                    for name, _ in headers[:3]:
                        assert leg.request.header(name.encode()) is None
                    rank = leg.request.header(b"x-data-parallel-rank")
                    assert rank in (None, b"0")
                    assert str(trap.port).encode() not in leg.request.body
            assert site.pools.complaints == []
        assert trap.connection_count == 0


def test_p10_prefill_answers_that_are_long_and_slow(site: Site) -> None:
    """500 at a time; with one protocol of each kind twice, to see what is left of them."""
    filler = b', "filler": "' + b"x" * 50_000 + b'"}'
    memory: list[int] = []

    async def wave() -> list[Answer]:
        bodies = (site.body(stream=bool(number % 2)) for number in range(500))
        asked = [await send(site.gw.port, CHAT.path, body) for body in bodies]
        return await asyncio.gather(*(each.whole() for each in asked))

    twice = site.protocol in ("nixl_pull", "sglang")
    for _ in range(2 if twice else 1):
        site.pools.reset()
        for engine in site.pools.prefills:
            engine.spoil = lambda body: body[:-1] + filler
            engine.behave(pieces=5, tail=0.05)
        answers = asyncio.run(wave())
        assert {says(answer) for answer in answers} == {TEXT}
        site.gw.settles_idle()
        assert site.pools.complaints == []
        assert len(site.legs(Part.PREFILL)) == 500
        assert site.pools.held == 0
        memory.append(site.gw.rss())
    if twice:
        # The answers of one wave are 25 MB.
        assert memory[1] < memory[0] + 15_000_000
        # What is kept for later is closed when it has been idle for some seconds.
        site.prefill.wait(lambda: not site.prefill.connections)


def test_p10_the_first_token_waits_for_no_tail_of_a_prefill_answer(site: Site) -> None:
    if site.protocol in CONCURRENT:
        site.prefill.behave(tail=60.0)
    else:  # the decode leg needs the JSON, and not what comes after it
        site.prefill.spoil = lambda body: body + b" " * len(body)
        site.prefill.behave(tail=60.0, pieces=2, framing=Framing.CHUNKED)
    with site.gw.client(timeout=SHORT) as client:
        client.request(CHAT.path, site.body(stream=True))
        assert client.events(2).status == 200
        assert not site.legs(Part.PREFILL)[0].request.complete


def test_p13_a_threshold_is_in_uncached_tokens(tmp_path: Path) -> None:
    """Of the tokens that the decode engine lacks as many as the threshold are handed over."""
    with ExitStack() as stack:
        site = Site(
            stack,
            tmp_path,
            "nixl_pull",
            disagg={"min_uncached_tokens": 1024},
            admin={"token": "secret"},
        )

        def remote(ids: list[int]) -> bool:
            site.pools.reset()
            body = {"model": "m", "prompt": ids, "max_tokens": 5}
            assert site.ask(body, COMPLETIONS.path).status == 200
            return bool(site.legs(Part.PREFILL))

        def fresh(count: int, start: int) -> list[int]:
            return [start * 10_000 + number for number in range(count)]

        assert not remote(fresh(1023, 1))
        assert remote(fresh(1024, 2))
        assert remote(fresh(1025, 3))
        half = fresh(1024, 4)
        assert remote(half)
        assert not remote(half)
        assert not remote(half + fresh(1000, 5))
        assert remote(half + fresh(1100, 6))
        assert not remote(fresh(4, 7))


@pytest.mark.parametrize(("threshold", "handed"), [(0, True), (10_000_000, False)])
def test_p13_zero_hands_over_all(tmp_path: Path, threshold: int, handed: bool) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path, "nixl_pull", disagg={"min_uncached_tokens": threshold})
        for body in (CHAT.body(["x"]), CHAT.body(["x"]), site.body()):
            site.pools.reset()
            assert says(site.ask(body)) == TEXT
            assert bool(site.legs(Part.PREFILL)) == handed


def test_p16_the_protocol_that_runs_is_the_one_asked_for(site: Site) -> None:
    assert site.protocol in site.gw.log
    pools = site.gw.admin("GET", "/disagg")
    assert site.protocol in str(pools)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"transfer": {"engine_id": "e"}}, "engine_id"),
        ({"kind": "trtllm"}, "kind"),
        ({"transfer": {"connector": "none"}}, "connector"),
    ],
    ids=str,
)
def test_p16_contradictions_are_refused(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    with Pools("sglang") as pools:
        tree = settings(pools)
    tree["backends"][0] |= change
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2
    assert field in ended.stderr
