from __future__ import annotations

from loadtests.agreement import report
from loadtests.agreement.figures import Figures
from loadtests.agreement.live import Run
from loadtests.agreement.setup import Setup
from loadtests.agreement.workload import cut
from loadtests.replay import source

TRACE = cut(source.find("gen:chat?seconds=10")(1), 10.0, 1.0, 100_000)
VIRTUAL = {
    "prefix_affinity": [Figures(90, 0, hit, 0.1, 0.4, 0.01) for hit in (0.79, 0.81)],
    "round_robin": [Figures(90, 1, 0.4, 0.5, 2.0, 0.03)],
}


def live(hit: float, ttft: float) -> dict[str, Run]:
    return {
        "prefix_affinity": Run(Figures(90, 0, hit, ttft, ttft, 0.01), 0.001, 0.1),
        "round_robin": Run(Figures(90, 0, 0.4, 0.5, 2.0, 0.03), 0.002, 0.8),
    }


def test_what_agrees_is_said_to() -> None:
    played = live(0.79, 0.12)
    assert report.agree(VIRTUAL, played)
    text = report.text(TRACE, Setup(), VIRTUAL, played)
    assert "1.0 points (within 2); standard deviation among runs in virtual time: 1.0" in text
    assert "ranking: the same" in text
    assert "2.0 ms" in text
    assert "0.80 cores" in text


def test_a_hit_ratio_that_is_far_off_is_no_agreement() -> None:
    played = live(0.75, 0.12)
    assert not report.agree(VIRTUAL, played)
    assert "5.0 points (MORE THAN 2)" in report.text(TRACE, Setup(), VIRTUAL, played)


def test_another_ranking_is_no_agreement() -> None:
    played = live(0.8, 0.9)
    assert not report.agree(VIRTUAL, played)
    text = report.text(TRACE, Setup(), VIRTUAL, played)
    assert "ranking: DIFFERENT for prefix_affinity and round_robin by ttft_mean" in text


def test_each_policy_has_a_line_with_both_ways() -> None:
    text = report.text(TRACE, Setup(), VIRTUAL, live(0.79, 0.12))
    [line] = [line for line in text.splitlines() if line.startswith("prefix_affinity")]
    assert line.split() == [
        "prefix_affinity", "80.0", "|", "79.0", "0.100", "|", "0.120", "0.400", "|", "0.120",
        "10.0", "|", "10.0", "0", "|", "0",
    ]  # fmt: skip
