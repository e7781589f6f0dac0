"""A prefill engine that dies: requests go on without it, and with it when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from gateway.fleet.backend import BackendState
from loadtests.process import ProcessError
from loadtests.real_engines.handover.asking import CHAT, COMPLETIONS, Reply, ask, body, words
from loadtests.real_engines.handover.site import Site
from loadtests.real_engines.report import Check

_LONG, _USUAL = 5500, 1500
_INTO_IT = 0.1
_NOTICE = 30.0
_REQUESTS = 4
_TRIES = 3
"""A decode engine that remembers an engine id's former process fails on the first transfer."""


def outage(site: Site) -> Iterator[Check]:
    """Kill the prefill engine while it works, ask on, start it again."""
    prefill_leg = site.prefill.tap.expect()
    asked = body(COMPLETIONS, site.model, words(_LONG))
    with ThreadPoolExecutor() as threads:
        pending = threads.submit(ask, site.url, COMPLETIONS, asked)
        if not prefill_leg.seen.wait(_NOTICE):
            raise ProcessError(f"the prefill leg did not come within {_NOTICE:g} s")
        time.sleep(_INTO_IT)
        site.prefill.kill()
        got = pending.result()
    same = got.text == ask(site.decode.url, COMPLETIONS, asked).text
    yield Check(
        got.status == 200 and got.placement.startswith("local;") and same,
        f"prefill engine killed at work: {got.status}, {got.placement},"
        f" {'the same' if same else 'another'} text as alone",
    )
    replies = [_ask(site, stream=bool(number % 2)) for number in range(_REQUESTS)]
    yield Check(
        all(reply.status == 200 and reply.text and not reply.remote for reply in replies),
        f"the next {len(replies)} requests: {_counted(replies)}",
    )
    waited = site.wait_prefill(BackendState.EJECTED)
    after = _ask(site)
    yield Check(
        after.status == 200 and not after.remote,
        f"it is ejected {waited:.1f} s later; then: {after.status}, {after.placement}",
    )
    site.prefill.start_again()
    waited = site.wait_prefill(BackendState.HEALTHY)
    replies, fetched = [], 0
    while len(replies) < _TRIES and not fetched:
        before = site.decode.read()
        replies.append(_ask(site))
        fetched = site.decode.read().since(before).fetched if replies[-1].remote else 0
    yield Check(
        fetched == replies[-1].prompt and all(reply.status == 200 for reply in replies),
        f"another process at its address, let in {waited:.1f} s after it is ready:"
        f" {_counted(replies)}, {fetched:,} of {replies[-1].prompt:,} tokens fetched",
    )


def _ask(site: Site, *, stream: bool = False) -> Reply:
    return ask(site.url, CHAT, body(CHAT, site.model, words(_USUAL)), stream=stream)


def _counted(replies: list[Reply]) -> str:
    kinds = [f"{reply.status}, {reply.placement}" for reply in replies]
    return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
