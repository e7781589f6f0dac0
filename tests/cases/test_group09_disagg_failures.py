"""Group 9: prefill and decode engines that fail, and clients that leave, for each protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.cases.pd import SOON, Site, says
from tests.harness.fake_backend import Health
from tests.harness.gateway_process import GatewayProcess, free_port
from tests.harness.pd.faults import Fault, after_head, before_head
from tests.harness.pd.leg import Leg, Part
from tests.harness.pd.pools import Pools
from tests.harness.pd.reference import CONCURRENT, PROTOCOLS
from tests.harness.pd.settings import settings
from tests.harness.routes import CHAT, text
from tests.process.full_listener import FullListener

TEXT = "t0 t1 t2 t3 t4 "
ALONE = tuple(name for name in PROTOCOLS if name != "sglang")
"""Their decode engines serve whole requests too."""


@pytest.fixture(scope="module", params=PROTOCOLS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    timeouts = {"prefill_first_byte": 2.0, "first_byte": 8.0}
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("gw")
        yield Site(stack, directory, request.param, pools={"prefills": 2}, timeouts=timeouts)


@pytest.fixture
def site(shared: Site) -> Site:
    shared.gw.settles_idle()
    shared.pools.reset()
    return shared


def prefills(site: Site, **changes: Any) -> None:
    for engine in site.pools.prefills:
        engine.behave(**changes)


def the(site: Site, part: Part) -> Leg:
    """Wait for a leg."""
    settles(lambda: bool(site.legs(part)))
    return site.legs(part)[0]


def closes(site: Site, leg: Leg) -> None:
    """Wait until a leg is no longer under way: what was to release it has been answered."""
    engine = next(each for each in site.pools.engines if leg in each.legs)
    engine.wait(lambda: leg.over, SOON)


def accounted(site: Site, orphaned: float) -> bool:
    """Nothing is held for nobody, or it is counted."""
    now = site.gw.metrics().total("prefixgate_pd_orphaned_total")
    return site.pools.held == 0 or now > orphaned


def settles(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_d07_a_client_that_leaves_ends_the_prefill_leg(site: Site) -> None:
    prefills(site, ttft=20.0)
    client = site.gw.client()
    client.request(CHAT.path, site.body(stream=True))
    leg = the(site, Part.PREFILL)
    time.sleep(0.2)
    assert leg.request.closed is None
    client.close()
    closes(site, leg)
    for decode in site.legs(Part.DECODE):
        closes(site, decode)
    assert (site.protocol in CONCURRENT) == bool(site.legs(Part.DECODE))
    site.gw.settles_idle()
    prefills(site)
    began = time.monotonic()
    assert says(site.ask(site.body())) == TEXT
    assert time.monotonic() - began < SOON


def test_d08_a_client_that_leaves_before_the_decode_leg(site: Site) -> None:
    """The prompt is computed, and the end of the answer that says so is on its way."""
    if site.protocol in CONCURRENT:
        return  # the decode leg is out by then, see below
    prefills(site, pieces=20, tail=20.0)
    orphaned = site.gw.metrics().total("prefixgate_pd_orphaned_total")
    client = site.gw.client()
    client.request(CHAT.path, site.body(stream=True))
    leg = the(site, Part.PREFILL)
    settles(lambda: bool(leg.request.answer))
    assert (leg.kv is not None) == (site.protocol != "shared_store")  # where nothing is held
    client.close()
    closes(site, leg)
    settles(lambda: accounted(site, orphaned))
    assert site.legs(Part.DECODE) == []
    site.gw.settles_idle()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_d08_a_client_that_leaves_while_the_decode_engine_is_dialled(
    tmp_path: Path, protocol: str
) -> None:
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(FullListener(port))
        pools = stack.enter_context(Pools(protocol))
        tree = settings(pools) | {"health": {"probes": False, "load_interval": None}}
        tree["backends"][1]["url"] = f"http://127.0.0.1:{port}"
        gw = stack.enter_context(GatewayProcess(tree, tmp_path, ready=False))
        client = gw.client()
        client.request(CHAT.path, CHAT.stream([text("dialled", 400)]))
        [prefill] = pools.prefills
        waits = protocol == "sglang"  # for the decode engine, before it answers
        prefill.wait(lambda: any(leg.kv if waits else leg.over for leg in prefill.legs))
        client.close()
        # What cannot be told to it within some seconds counts as not released.
        counted = "prefixgate_pd_orphaned_total"
        gw.settles(lambda now: pools.held == 0 or now.total(counted) == 1, 15.0)
        gw.settles_idle()


def test_d08_a_client_that_leaves_a_transfer(site: Site) -> None:
    site.decode.transfer = 20.0
    orphaned = site.gw.metrics().total("prefixgate_pd_orphaned_total")
    client = site.gw.client()
    client.request(CHAT.path, site.body(stream=True))
    leg = the(site, Part.DECODE)
    settles(lambda: leg.kv is not None)
    client.close()
    closes(site, leg)
    settles(lambda: accounted(site, orphaned))
    site.gw.settles_idle()


def test_p04_a_prefill_engine_that_refuses_ends_the_request_now(site: Site) -> None:
    body = json.dumps({"error": {"message": "too long for me", "code": 400}}).encode()
    refuse = Event()
    prefills(site, status=400, body=body, until=refuse)
    site.decode.behave(hang=True)
    with site.gw.client() as client:
        client.request(CHAT.path, site.body(stream=True))
        the(site, Part.DECODE if site.protocol in CONCURRENT else Part.PREFILL)
        decodes = site.legs(Part.DECODE)
        refuse.set()
        began = time.monotonic()
        answer = client.answer()
    assert time.monotonic() - began < SOON
    assert (answer.status, answer.body) == (400, body)
    for leg in decodes:
        closes(site, leg)
    site.gw.settles_idle()


@pytest.mark.parametrize("fault", [Fault.BROKEN, Fault.BUSY, Fault.RESET])
@pytest.mark.parametrize("early", [False, True], ids=["", "decode-head"])
def test_p04_another_prefill_engine_takes_over(site: Site, fault: Fault, early: bool) -> None:
    site.prefill.behave(**before_head(fault))
    site.decode.behave(early_head=early)
    for _ in range(2):
        assert says(site.ask(site.body(stream=True))) == TEXT
    assert site.decode.complaints == []
    site.gw.settles_idle()


@pytest.mark.parametrize("fault", [Fault.BROKEN, Fault.BUSY, Fault.RESET, Fault.HANG])
def test_p04_without_any_prefill_engine_that_works(site: Site, fault: Fault) -> None:
    prefills(site, **before_head(fault))
    began = time.monotonic()
    answer = site.ask(site.body(stream=True))
    assert time.monotonic() - began < 3 * SOON
    if site.protocol in ALONE:
        assert says(answer) == TEXT
        [whole] = site.legs(Part.WHOLE)[-1:]
        assert whole in site.decode.legs
    else:
        assert answer.status >= 429
        assert answer.body
    for leg in site.legs(Part.DECODE):
        site.decode.wait(lambda leg=leg: leg.request.closed is not None or leg.request.complete)
    site.gw.settles_idle()


def test_p04_a_prefill_answer_that_breaks_off(site: Site) -> None:
    prefills(site, **after_head(Fault.RESET, streams=False))
    answer = site.ask(site.body())
    if site.protocol in ALONE:
        assert says(answer) == TEXT
    else:
        assert answer.status >= 500
    site.gw.settles_idle()


JUNK: dict[str, Callable[[dict[str, Any]], object]] = {
    "missing": lambda answer: _owner(answer).pop(_name(answer)),
    "null": lambda answer: _owner(answer).update({_name(answer): None}),
    "empty": lambda answer: _owner(answer).update({_name(answer): {}}),
    "malformed": lambda answer: _owner(answer).update({_name(answer): "x"}),
}


WITHOUT = {"missing": b"{}", "null": b"null", "empty": b"", "malformed": b"x"}


def _owner(answer: dict[str, Any]) -> dict[str, Any]:
    return answer if "kv_transfer_params" in answer else answer["choices"][0]


def _name(answer: dict[str, Any]) -> str:
    return "kv_transfer_params" if "kv_transfer_params" in answer else "disaggregated_params"


@pytest.mark.parametrize("kind", JUNK)
def test_p06_a_prefill_answer_without_transfer_data(site: Site, kind: str) -> None:
    if site.protocol not in ("nixl_pull", "trtllm"):
        # Nothing is read from it: whatever it is, the decode engine has what it needs.
        for engine in site.pools.prefills:
            engine.spoil = lambda body: WITHOUT[kind]
        assert says(site.ask(site.body())) == TEXT
        assert len(site.legs(Part.DECODE)) == 1
        return

    def spoil(body: bytes) -> bytes:
        answer = json.loads(body)
        JUNK[kind](answer)
        return json.dumps(answer).encode()

    for engine in site.pools.prefills:
        engine.spoil = spoil
    before = site.gw.metrics().by("prefixgate_pd_fallback_total", "reason")
    assert says(site.ask(site.body())) == TEXT
    assert site.legs(Part.DECODE) == []
    assert site.decode.complaints == []
    after = site.gw.metrics().by("prefixgate_pd_fallback_total", "reason")
    assert after.get("no_transfer", 0) == before.get("no_transfer", 0) + 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p07_decode_failures_are_not_empty_successes(tmp_path: Path, protocol: str) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path, protocol)
        # The last one keeps the two engines apart for a while.
        for fault in (Fault.REFUSED, Fault.BUSY, Fault.RESET, Fault.BROKEN):
            for streams in (True, False):
                site.decode.behave(**before_head(fault))
                orphaned = site.gw.metrics().total("prefixgate_pd_orphaned_total")
                answer = site.ask(site.body(stream=streams))
                wanted = {502} if fault is Fault.RESET else {int(fault), 503}
                assert answer.status in wanted
                assert answer.json.get("error") or answer.json["object"] == "error"
                if fault in (Fault.REFUSED, Fault.BUSY):  # else it may have read the blocks
                    settles(lambda orphaned=orphaned: accounted(site, orphaned))
        site.gw.settles_idle()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p07_a_decode_failure_before_the_first_byte_starts_over(
    tmp_path: Path, protocol: str
) -> None:
    """With parameters that nobody has been shown before, or without any."""
    with ExitStack() as stack:
        site = Site(stack, tmp_path, protocol, pools={"prefills": 2})
        for fault in (Fault.RESET, Fault.BROKEN):
            site.decode.next(**before_head(fault))
            answer = site.ask(site.body(stream=True))
            if protocol in ALONE:
                assert says(answer) == TEXT
            else:
                assert answer.status >= 500
        assert site.pools.complaints == []


@pytest.mark.parametrize("fallback", ["plain", "fail"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p12_fallback_is_explicit(tmp_path: Path, protocol: str, fallback: str) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path, protocol, disagg={"fallback": fallback})
        site.prefill.stop()
        body = site.body()
        began = time.monotonic()
        answer = site.ask(body)
        assert time.monotonic() - began < SOON
        if fallback == "plain" and protocol in ALONE:
            assert says(answer) == TEXT
            [whole] = site.legs(Part.WHOLE)
            assert list(whole.body.items()) == list(body.items())
            assert site.gw.metrics().total("prefixgate_pd_fallback_total") == 1
        else:
            assert answer.status in (502, 503)
            assert answer.json["error"]["message"]
            assert site.legs(Part.WHOLE) == []


@pytest.mark.parametrize(
    ("protocol", "fallback", "alone"),
    [("nixl_pull", "plain", True), ("nixl_pull", "fail", False), ("sglang", "plain", False)],
)
def test_l04_ready_means_able_to_serve(
    tmp_path: Path, protocol: str, fallback: str, alone: bool
) -> None:
    with Pools(protocol) as pools:
        [prefill] = pools.prefills
        prefill.health = Health.UNAVAILABLE
        tree = settings(pools, fallback=fallback) | {"health": {"interval": 0.1}}
        with GatewayProcess(tree, tmp_path, ready=False) as gw:
            assert gw.http.get("/live").status_code == 200
            if alone:
                settles(lambda: gw.http.get("/ready").status_code == 200)
                return
            time.sleep(0.5)
            answer = gw.http.get("/ready")
            assert answer.status_code == 503
            assert answer.json()
            prefill.health = Health.OK
            settles(lambda: gw.http.get("/ready").status_code == 200)
