"""Two engines that are well, and between which nothing comes over."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.cases.pd import Site, says
from tests.harness.behaviour import Behaviour
from tests.harness.pd.engine import PdEngine
from tests.harness.pd.leg import Part
from tests.harness.recorded import Recorded

ASKED = 5


def test_engines_of_sglang_that_do_not_meet_are_no_longer_paired(tmp_path: Path) -> None:
    """A bootstrap server that one decode engine cannot reach: both legs are silent, and all probes
    are answered."""
    deaf: list[PdEngine] = []

    def rule(engine: PdEngine) -> None:
        def behaviour(request: Recorded) -> Behaviour | None:
            if not deaf:
                deaf.append(engine)
            return Behaviour(hang=True) if engine in deaf else None

        engine.rule = behaviour

    with ExitStack() as stack:
        site = Site(
            stack,
            tmp_path,
            "sglang",
            pools={"decodes": 2},
            timeouts={"prefill_first_byte": 1.5},
        )
        for engine in site.pools.decodes:
            rule(engine)
        answers = [site.ask(site.body(stream=bool(at % 2))) for at in range(ASKED)]
        lost = [answer for answer in answers if answer.status != 200]
        assert len(lost) <= 2
        assert all(answer.status == 504 for answer in lost)
        assert len(deaf[0].parts(Part.DECODE)) == len(lost) > 0
        assert says(answers[-1]) == "t0 t1 t2 t3 t4 "
        if len(lost) == 2:
            assert "2 times in a row: not paired for 5 s" in site.gw.log
