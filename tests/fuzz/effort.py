"""How long the fuzzers run: some seconds, always the same way, or as much more as is asked for."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("PREFIXGATE_FUZZ", "1"))
"""Times as many examples, and each run other ones."""


def effort(examples: int) -> settings:
    return settings(
        max_examples=examples * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
