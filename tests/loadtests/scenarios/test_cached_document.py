from __future__ import annotations

import pytest

from gateway.types import WorkClass
from loadtests.scenarios import cached_document
from loadtests.scenarios.cached_document import (
    DOCUMENT_TOKENS,
    OURS,
    QUESTION_TOKENS,
    Course,
)


@pytest.fixture(scope="module")
def course() -> Course:
    return cached_document.play(OURS)


def test_it_goes_where_the_document_is_and_is_charged_all_of_it(course: Course) -> None:
    assert course.question.engine == course.home
    assert course.question.cached_tokens == DOCUMENT_TOKENS
    assert course.charged == DOCUMENT_TOKENS + QUESTION_TOKENS == 100_000


def test_it_is_decode_class(course: Course) -> None:
    assert course.question.work_class is WorkClass.DECODE


def test_no_prefill_that_waits_in_the_gateway_goes_before_it(course: Course) -> None:
    at = course.question.arrival
    waiting = [
        filler
        for filler in course.fillers
        if filler.engine == course.home and filler.arrival + filler.queue_seconds > at
    ]
    assert waiting
    sent = at + course.question.queue_seconds
    assert all(filler.arrival + filler.queue_seconds >= sent for filler in waiting)
