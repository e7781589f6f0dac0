from __future__ import annotations

from loadtests.replay.result import Result
from loadtests.replicas import follow_ups
from tests.loadtests.replay.made import BLOCK, request, trace

CONVERSATION = trace(
    request(0, blocks=[1, 2]),
    request(1, blocks=[9]),
    request(2, blocks=[1, 2, 3], parent=0),
    request(3, blocks=[1, 2, 3, 4], parent=2),
)


def results(*cached: int | None) -> list[Result]:
    made = []
    for place, tokens in enumerate(cached):
        result = Result(float(place), 1000, 10, 1.0)
        if tokens is not None:
            result.first, result.cached_tokens = 5.0, tokens
        made.append(result)
    return made


def test_what_could_be_found_is_what_somebody_had_before() -> None:
    assert follow_ups.reusable(CONVERSATION) == [0, 0, 2 * BLOCK, 3 * BLOCK]


def test_only_follow_ups_count_and_only_of_what_they_could_find() -> None:
    reusable = follow_ups.reusable(CONVERSATION)
    found = results(0, 500, BLOCK, 3 * BLOCK)
    assert follow_ups.hit_share(CONVERSATION, found, reusable, 0.0) == 4 / 5
    assert follow_ups.hit_share(CONVERSATION, found, reusable, 2.5) == 1.0


def test_those_that_were_refused_do_not_count() -> None:
    reusable = follow_ups.reusable(CONVERSATION)
    found = results(0, 0, BLOCK, None)
    assert follow_ups.hit_share(CONVERSATION, found, reusable, 0.0) == 1 / 2
