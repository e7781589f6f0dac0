"""A very long prompt of which one engine holds nearly all, while the engines are busy."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import WorkClass
from loadtests.replay.result import Result
from loadtests.scenarios.prompts import Prompts, ask
from loadtests.scenarios.stage import ENGINES, Stage
from loadtests.scenarios.table import Figures

TITLE = "100,000 tokens, 99 % of them cached on one engine, that has prefills waiting"
DOCUMENT_TOKENS = 99_328
QUESTION_TOKENS = 672
OUTPUT_TOKENS = 100
FILLER_TOKENS = 20_000
FILLERS = 5
"""Prompts per engine that nobody holds any of, which come just before."""
BEGIN = 60.0
STEP = 1e-3
"""Seconds between two looks whether the request has gone."""
OURS = "prefix_affinity"
ARMS = (OURS, "llm_d_blend", "lmetric", "minimum_ttft")


@dataclass(slots=True, frozen=True)
class Course:
    """
    Attributes:
        home: the engine that holds the document.
        question: what became of the request.
        fillers: what became of those that came before it.
        charged: tokens by which the ledger of its engine's memory grew for it.
    """

    home: int
    question: Result
    fillers: list[Result]
    charged: int


def run() -> dict[str, Figures]:
    rows: dict[str, Figures] = {}
    for arm in ARMS:
        course = play(arm)
        at_home = [filler for filler in course.fillers if filler.engine == course.home]
        ttft = course.question.ttft or 0.0
        rows[arm] = {
            "at home": course.question.engine == course.home,
            "decode class": course.question.work_class is WorkClass.DECODE,
            "cached": course.question.cached_tokens / course.question.input_tokens,
            "memory charged": course.charged,
            "TTFT": ttft,
            "queue": course.question.queue_seconds,
            "overtook": sum(
                (filler.first or 0.0) > course.question.arrival + ttft for filler in at_home
            ),
        }
    return rows


def play(arm: str) -> Course:
    stage, prompts = Stage(arm), Prompts()
    document = prompts.prefix(DOCUMENT_TOKENS)
    first = stage.ask(ask(0.0, prompts.own(document, 100), OUTPUT_TOKENS))
    fillers = [
        stage.ask(ask(BEGIN + 0.001 * place, prompts.prefix(FILLER_TOKENS), OUTPUT_TOKENS))
        for place in range(FILLERS * ENGINES)
    ]
    at = BEGIN + 0.5
    stage.timeline.run(at)
    question = stage.ask(ask(at, prompts.own(document, QUESTION_TOKENS), OUTPUT_TOKENS))
    while question.engine < 0:
        before = _memory(stage)
        stage.timeline.run(at := at + STEP)
    charged = _memory(stage)[question.engine] - before[question.engine]
    stage.timeline.run()
    return Course(first.engine, question, fillers, charged)


def _memory(stage: Stage) -> list[int]:
    return [load.memory_tokens for load in stage.gateway.pool.backends]
