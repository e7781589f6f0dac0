"""What headers, log and metrics say of requests that were not served as was meant."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.cases.pd import Site, says
from tests.harness.behaviour import Cut
from tests.harness.pd.leg import Part
from tests.harness.routes import CHAT

TEXT = "t0 t1 t2 t3 t4 "
FAILURES: dict[str, dict[str, Any]] = {
    "refused": {"status": 500},
    "broken": {"script": (Cut.RST,)},
    "busy": {"status": 429},
}


@pytest.mark.parametrize("least", [0, None])
@pytest.mark.parametrize("why", FAILURES)
def test_who_is_served_by_an_engine_that_takes_no_part_is_told_so(
    tmp_path: Path, why: str, least: int | None
) -> None:
    """SGLang's decode engines serve nothing alone, so that a unified one does in the end."""
    log, go_on = tmp_path / "access", Event()
    disagg = {"min_uncached_tokens": least}
    with ExitStack() as stack:
        site = Site(
            stack,
            tmp_path,
            "sglang",
            pools={"unified": 1},
            disagg=disagg,
            log={"access": str(log)},
            retries={"budget": 1.0},
        )
        id = site.gw.backend_id(site.pools.unified[0].url)
        site.gw.admin("POST", f"/backends/{id}/drain")
        site.prefill.behave(until=go_on, **FAILURES[why])
        with site.gw.client() as client:
            client.request(CHAT.path, site.body(stream=True))
            site.prefill.wait(lambda: bool(site.legs(Part.PREFILL)))
            site.gw.admin("POST", f"/backends/{id}/undrain")
            go_on.set()
            answer = client.answer()
        assert says(answer) == TEXT
        assert answer.header("x-prefixgate-backend") == id
        assert answer.header("x-prefixgate-handover") == f"local; {why}"
        assert answer.header("x-prefixgate-prefill-backend") is None
        metrics = site.gw.settles_idle()
        assert metrics.by("prefixgate_pd_fallback_total", "reason") == {why: 1}
        assert metrics.by("prefixgate_pd_requests_total", "reason") == {why: 1}
        assert metrics.by("prefixgate_pd_requests_total", "placement") == {"local": 1}
        assert site.gw.stop() == 0
        [line] = [json.loads(line) for line in log.read_text().splitlines()]
        assert line["fallback"] == why
        assert line["prefill_backend"] is None


def test_who_finds_the_prefill_engines_full_is_told_so(tmp_path: Path) -> None:
    go_on = Event()
    with ExitStack() as stack:
        site = Site(
            stack,
            tmp_path,
            "sglang",
            pools={"unified": 1},
            disagg={"min_uncached_tokens": 0},
            scheduling={"prefill": {"max_requests": 1}},
            policy={"name": "round_robin"},
        )
        site.prefill.behave(until=go_on)
        for _ in range(2):  # one for each of those who could generate
            waiting = stack.enter_context(site.gw.client())
            waiting.request(CHAT.path, site.body(stream=True))
        site.prefill.wait(lambda: bool(site.legs(Part.PREFILL)))
        told = [site.ask(site.body()).header("x-prefixgate-handover") for _ in range(6)]
        assert "local; full" in told
        assert set(told) <= {"local; sooner", "local; full"}
        metrics = site.gw.metrics()
        full = metrics.total("prefixgate_pd_fallback_total", reason="full")
        assert full == told.count("local; full")
        assert len(site.legs(Part.PREFILL)) == 1
        go_on.set()


def test_an_answer_with_nothing_to_fetch_is_not_told_as_no_prefill_engine(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path, "nixl_pull", disagg={"fallback": "fail"})
        site.prefill.spoil = lambda body: b"{}"
        answer = site.ask(site.body())
        assert answer.status == 503
        assert answer.json["error"]["message"] == "The prompt could not be handed over."
        site.gw.settles_idle()


@pytest.mark.parametrize("policy", ["prefix_affinity", "round_robin"])
def test_who_is_served_by_a_unified_engine_beside_them_is_told_so(
    tmp_path: Path, policy: str
) -> None:
    """It is chosen by a policy that looks at one engine only."""
    with ExitStack() as stack:
        site = Site(stack, tmp_path, "nixl_pull", pools={"unified": 1}, policy={"name": policy})
        site.gw.admin("POST", f"/backends/{site.gw.backend_id(site.decode.url)}/drain")
        body = site.body()
        asked = {"path": CHAT.path, "body": body}
        explained = site.gw.admin("POST", "/explain", asked)["decision"]["handover"]
        answer = site.ask(body)
        assert says(answer) == TEXT
        assert answer.header("x-prefixgate-backend") == explained["decode_backend"]
        assert answer.header("x-prefixgate-handover") == f"local; {explained['reason']}"
        assert explained["reason"] == "sooner"
        metrics = site.gw.settles_idle()
        assert metrics.by("prefixgate_pd_requests_total", "reason") == {"sooner": 1}
