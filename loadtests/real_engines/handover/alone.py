"""Requests that no protocol carries, which go to one engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadtests.real_engines.handover.asking import COMPLETIONS, ask, body, words
from loadtests.real_engines.handover.site import Site
from loadtests.real_engines.report import Check

_WORDS = 1500


def alone(site: Site) -> Iterator[Check]:
    batch = [words(_WORDS), words(_WORDS)]
    for what, members in (
        ("n: 2", {"n": 2, "temperature": 1.0}),
        ("prompt_logprobs: 1", {"prompt_logprobs": 1}),
        ("echo: true", {"echo": True}),
        ("two prompts", {"prompt": batch}),
    ):
        yield _one(site, what, members)


def _one(site: Site, what: str, members: dict[str, Any]) -> Check:
    asked = {**body(COMPLETIONS, site.model, words(_WORDS)), **members}
    before = site.prefill.read()
    got = ask(site.url, COMPLETIONS, asked)
    prefill = site.prefill.read().since(before)
    passed = got.status == 200 and got.placement.startswith("local;") and prefill.ended == 0
    return Check(passed, f"{what}: {got.status}, {got.placement}")
