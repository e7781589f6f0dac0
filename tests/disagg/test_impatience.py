from __future__ import annotations

import pytest

from gateway.disagg.impatience import Impatience


def test_counts_who_comes_by_how_long_they_can_wait() -> None:
    impatience = Impatience()
    for second in range(600):
        impatience.add("short", float(second), 2.0)
        impatience.add("long", float(second), 20.0)
    assert impatience.at("short", 600.0) == pytest.approx(0.5, rel=0.05)
    assert impatience.at("long", 600.0) == pytest.approx(0.05, rel=0.05)
    assert impatience.at("never", 600.0) == 0.0


def test_fades() -> None:
    impatience = Impatience()
    impatience.add("a", 0.0, 2.0)
    assert impatience.at("a", 0.0) == pytest.approx(0.5 / 60.0)
    assert impatience.at("a", 600.0) < 1e-5
