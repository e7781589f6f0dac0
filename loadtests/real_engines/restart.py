"""An engine that ends and comes back: what the gateway believed of its cache must be gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from openai import OpenAI

from gateway.fleet.backend import BackendState
from loadtests.real_engines.fleet import Engine, Gateway
from loadtests.real_engines.report import Check


def restart(front: Gateway, engine: Engine, model: str) -> Iterator[Check]:
    """Stop an engine by its process id, ask something, start it again."""
    backend = next(view.id for view in front.backends() if view.url == engine.url)
    before = front.index().backends
    engine.stop()
    served = _ask(front, model)
    yield Check(served != backend, f"with {backend} just stopped, {served} answers")
    waited = front.wait_until(backend, BackendState.EJECTED)
    yield Check(True, f"{backend} is ejected {waited:.1f} s later")
    start = time.monotonic()
    engine.start_again()
    ready = time.monotonic() - start
    waited = front.wait_until(backend, BackendState.HEALTHY)
    yield Check(True, f"another process is up after {ready:.0f} s, and let in {waited:.1f} s later")
    after = front.index().backends
    for id, held in before.items():
        gone = after[id].blocks == 0 if id == backend else after[id].blocks >= held.blocks
        yield Check(
            held.blocks > 0 and gone,
            f"believed to be cached at {id}: {held.blocks} blocks before, {after[id].blocks} now",
        )


def _ask(front: Gateway, model: str) -> str:
    """Returns:
    Who answered.
    """
    with OpenAI(base_url=f"{front.url}/v1", api_key="unused", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=[{"role": "user", "content": "Who is there?"}], max_tokens=4
        )
        return raw.headers["x-prefixgate-backend"]
