from __future__ import annotations

from loadtests.scenarios import unequal
from loadtests.scenarios.unequal import ARMS, FLEETS, OURS


def test_ours_serves_more_within_the_slo_on_unequal_engines() -> None:
    rows = unequal.run()
    for fleet in FLEETS:
        best = max(rows[f"{arm}, {fleet}"]["slo"] for arm in ARMS if arm != OURS)
        assert rows[f"{OURS}, {fleet}"]["slo"] >= best + 0.03
