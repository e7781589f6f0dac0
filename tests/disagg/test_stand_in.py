"""Prefill engines serve whole requests where the decode engines cannot be reached."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cases.pd import Site, says
from tests.harness.pd.reference import PROTOCOLS

TEXT = "t0 t1 t2 t3 t4 "


@pytest.mark.parametrize("policy", ["prefix_affinity", "round_robin"])
@pytest.mark.parametrize("least", [0, None])
@pytest.mark.parametrize("protocol", [each for each in PROTOCOLS if each != "sglang"])
def test_no_request_fails_because_the_decode_engine_is_down(
    tmp_path: Path, protocol: str, least: int | None, policy: str
) -> None:
    """Its breaker does not open: each request finds out for itself."""
    with ExitStack() as stack:
        site = Site(
            stack,
            tmp_path,
            protocol,
            disagg={"min_uncached_tokens": least},
            policy={"name": policy},
            retries={"budget": 1.0},
            health={"interval": 60.0},
        )
        id = site.gw.backend_id(site.prefill.url)
        site.decode.stop()
        for number in range(4):
            answer = site.ask(site.body(stream=bool(number % 2)))
            assert says(answer) == TEXT
            assert answer.header("x-prefixgate-backend") == id
            assert answer.header("x-prefixgate-prefill-backend") is None
            assert answer.header("x-prefixgate-handover").startswith("local; ")
        site.gw.settles_idle()
