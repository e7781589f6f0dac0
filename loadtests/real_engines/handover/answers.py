"""Answers to requests that are handed over: the same as without, and computed once."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.real_engines.handover.asking import CHAT, COMPLETIONS, Reply, ask, body, words
from loadtests.real_engines.handover.site import Site
from loadtests.real_engines.report import Check

_WORDS = (1100, 3000)
"""In a prompt; the tiny model needs about as many tokens, another one does too."""


def answers(site: Site) -> Iterator[Check]:
    """Ask for the same with and without a handover, on two routes, streaming and not."""
    for path in (COMPLETIONS, CHAT):
        for stream in (False, True):
            for count in _WORDS:
                yield _one(site, path, count, stream=stream)


def _one(site: Site, path: str, count: int, *, stream: bool) -> Check:
    asked = body(path, site.model, words(count))
    before = site.prefill.read(), site.decode.read()
    got = ask(site.url, path, asked, stream=stream)
    site.decode.wait_idle()
    prefill = site.prefill.read().since(before[0])
    decode = site.decode.read().since(before[1])
    alone = ask(site.decode.url, path, {**asked, "cache_salt": "alone"})
    passed = (
        got.status == 200
        and got.remote
        and _same(got, alone)
        and (not stream or got.chunks > 1)
        and (prefill.computed, decode.computed, decode.fetched) == (got.prompt, 0, got.prompt)
    )
    how = f", streamed in {got.chunks}" if stream else ""
    return Check(
        passed,
        f"{path}{how}: {got.placement}; of {got.prompt:,} tokens prefill computed"
        f" {prefill.computed:,}, decode fetched {decode.fetched:,}, computed {decode.computed:,},"
        f" tells {got.cached:,} cached; {'same' if _same(got, alone) else 'another'} text as alone",
    )


def _same(one: Reply, other: Reply) -> bool:
    return bool(one.text) and one.text == other.text
