from __future__ import annotations

import pytest

from loadtests.replay.arrivals import JITTER, grain, spread
from tests.loadtests.replay.made import request, trace


def test_the_grain_is_what_all_arrivals_are_multiples_of() -> None:
    assert grain([request(0), request(3), request(12)]) == 3
    assert grain([request(0), request(3.001), request(6), request(12)]) == 3, "clocks are unsharp"
    assert grain([request(0), request(3), request(4.1)]) == 0
    assert grain([request(0.3 * n) for n in range(9)]) == 0, "batches so short are exact enough"
    assert grain([request(0)]) == 0


def test_batches_are_spread_over_their_window_by_seed() -> None:
    made = trace(*(request(3.0 * (n // 50), tokens=n + 1) for n in range(200)), window=3.0)
    one, again, other = (spread(made, seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    arrivals = [r.arrival for r in one.requests]
    assert arrivals == sorted(arrivals)
    for found in one.requests:
        begin = 3.0 * ((found.input_tokens - 1) // 50)
        assert begin <= found.arrival < begin + 3
    firsts = [a for a in arrivals if a < 3]
    assert sum(firsts) / len(firsts) == pytest.approx(1.5, abs=0.5)


def test_exact_arrivals_move_by_no_more_than_the_jitter() -> None:
    made = trace(*(request(10.0 * n) for n in range(20)))
    moved = [found.arrival - 10.0 * n for n, found in enumerate(spread(made, 1).requests)]
    assert max(map(abs, moved)) <= JITTER
    assert len(set(moved)) > 10
    assert min(r.arrival for r in spread(made, 1).requests) >= 0


def test_turns_keep_their_parents() -> None:
    made = trace(
        *(request(0, tokens=n + 1) for n in range(20)),
        *(request(3, tokens=n + 101, parent=n) for n in range(20)),
        window=3.0,
    )
    found = spread(made, 5).requests
    turns = [r for r in found if r.parent is not None]
    assert len(turns) == 20
    for turn in turns:
        assert turn.parent is not None
        assert found[turn.parent].input_tokens == turn.input_tokens - 100
