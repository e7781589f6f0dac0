"""What the gateway expects to be cached at either engine, and what is."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.real_engines.handover.asking import CHAT, Reply, ask, body, words
from loadtests.real_engines.handover.reading import Reading, told
from loadtests.real_engines.handover.site import Site
from loadtests.real_engines.report import Check

_FIRST, _NEXT, _LITTLE = 1500, 1200, 60
"""Words that each turn adds."""
_BLOCKS = 2
"""Of the engines' blocks, by which the expectation may be off: it counts in blocks of its own, and
four bytes a token until it has learnt better."""


def cached(site: Site) -> Iterator[Check]:
    """A prompt that grows: by so much that it is handed over again, then by little."""
    text = words(_FIRST)
    for number, (more, remote) in enumerate(((_NEXT, True), (_LITTLE, False))):
        if not number:
            ask(site.url, CHAT, body(CHAT, site.model, text))
        text += " " + words(more)
        before = site.prefill.read(), site.decode.read()
        counted = told(site.url).cached
        got = ask(site.url, CHAT, body(CHAT, site.model, text))
        site.decode.wait_idle()
        prefill = site.prefill.read().since(before[0])
        decode = site.decode.read().since(before[1])
        counted = told(site.url).cached - counted
        yield (_handed_over if remote else _kept)(site, got, counted, prefill, decode)


def _handed_over(site: Site, got: Reply, counted: int, prefill: Reading, decode: Reading) -> Check:
    off = abs(got.matched - prefill.cached)
    whole = decode.cached + decode.fetched
    passed = (
        got.remote
        and decode.cached > 0
        and decode.computed == 0
        and whole == got.prompt
        and counted == prefill.cached
        and off <= _BLOCKS * site.block
    )
    return Check(
        passed,
        f"much longer turn: {got.placement}; prefill found {prefill.cached:,} of {got.prompt:,}"
        f" (expected {got.matched:,}), decode had {decode.cached:,} and fetched {decode.fetched:,};"
        f" counted as cached: {counted:,}",
    )


def _kept(site: Site, got: Reply, counted: int, prefill: Reading, decode: Reading) -> Check:
    off = abs(got.matched - decode.cached)
    passed = (
        not got.remote
        and prefill.ended == 0
        and counted == got.cached == decode.cached
        and off <= _BLOCKS * site.block
    )
    return Check(
        passed,
        f"little longer turn: {got.placement}; decode found {decode.cached:,} of {got.prompt:,}"
        f" (expected {got.matched:,}); counted as cached: {counted:,}",
    )
