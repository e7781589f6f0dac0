"""Clients that leave while their request is prefilled, just after that, and while it decodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from loadtests.process import ProcessError
from loadtests.real_engines.handover.asking import COMPLETIONS, Leaver, body, words
from loadtests.real_engines.handover.reading import Reading, told
from loadtests.real_engines.handover.site import Site
from loadtests.real_engines.report import Check

_LONG, _USUAL = 5500, 2500
"""Words in a prompt; of the longer one the prefill takes several of the engine's steps."""
_INTO_IT = 0.02
_NOTICE = 30.0
_EVENTS = 3
_MUCH = 2000
"""Tokens to be generated, most of which nobody waits for."""


def leaving(site: Site, *, concurrent: bool) -> Iterator[Check]:
    """Args:
    concurrent: both legs are sent at once, so that no client leaves between them.
    """
    yield _during_prefill(site)
    if not concurrent:
        yield _between_the_legs(site)
    yield _during_decode(site)


def _during_prefill(site: Site) -> Check:
    before = site.prefill.read(), site.decode.read()
    released = told(site.url).released
    prefill_leg = site.prefill.tap.expect()
    leaver = _leaver(site, _LONG)
    _wait(prefill_leg.seen, "the prefill leg")
    time.sleep(_INTO_IT)
    leaver.leave()
    prefill, decode, settled = _settle(site, before)
    # An engine that is quick has computed the prompt before it sees that nobody is listening.
    released = told(site.url).released - released
    passed = settled is not None and prefill.served == released and not decode.fetched
    what = f"while it is prefilled ({released} released)"
    return _check(passed, what, prefill, decode, settled)


def _between_the_legs(site: Site) -> Check:
    before = site.prefill.read(), site.decode.read()
    before_it = told(site.url)
    decode_leg = site.decode.tap.expect(hold=True)
    leaver = _leaver(site, _USUAL)
    _wait(decode_leg.seen, "the decode leg")
    held = site.prefill.wait_held()
    leaver.leave()
    _wait(decode_leg.closed, "the end of the decode leg")
    prefill, decode, settled = _settle(site, before)
    now = told(site.url)
    counted = (now.released - before_it.released, now.orphaned - before_it.orphaned)
    passed = settled is not None and counted == (1, 0) and not decode.fetched
    what = f"between the legs ({held:.1%} of the prefill engine's cache held; released)"
    return _check(passed, what, prefill, decode, settled)


def _during_decode(site: Site) -> Check:
    before = site.prefill.read(), site.decode.read()
    leaver = _leaver(site, _USUAL)
    leaver.wait_text(_EVENTS)
    leaver.leave()
    prefill, decode, settled = _settle(site, before)
    passed = settled is not None and not decode.served and decode.fetched > 0
    return _check(passed, "while it decodes", prefill, decode, settled)


def _leaver(site: Site, count: int) -> Leaver:
    asked = body(COMPLETIONS, site.model, words(count), max_tokens=_MUCH, ignore_eos=True)
    return Leaver(site.url, COMPLETIONS, asked)


def _settle(site: Site, before: tuple[Reading, Reading]) -> tuple[Reading, Reading, float | None]:
    """Returns:
    What both engines counted, and the seconds until neither held anything.
    """
    start = time.monotonic()
    idle = [half.wait_idle() for half in (site.prefill, site.decode)]
    settled = None if None in idle else time.monotonic() - start
    prefill, decode = site.prefill.read(), site.decode.read()
    return prefill.since(before[0]), decode.since(before[1]), settled


def _check(
    passed: bool, when: str, prefill: Reading, decode: Reading, settled: float | None
) -> Check:
    unclean = prefill.expired or prefill.too_late or decode.failed
    served = f"to the end came {prefill.served} prefill and {decode.served} decode legs"
    free = "something is still held" if settled is None else f"nothing held {settled:.1f} s later"
    text = f"{when}: {served}; {free}; {prefill.expired} leases expired"
    return Check(passed and not unclean, text)


def _wait(event: threading.Event, what: str) -> None:
    if not event.wait(_NOTICE):
        raise ProcessError(f"{what} did not come within {_NOTICE:g} s")
