import pytest
from msgspec.structs import replace

from gateway.config import Scheduling, Target
from gateway.scheduling.classify import appraise
from gateway.scheduling.load import BackendLoad
from gateway.types import Match
from tests.scheduling.virtual import DECODE, PREFILL, ask, load_of

SETTINGS = Scheduling(prefill_seconds=0.25, target=Target(seconds=2.0, factor=3.0))


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, DECODE), (2499, DECODE), (2500, PREFILL), (100_000, PREFILL)]
)
def test_Q16_the_class_follows_the_work_of_the_whole_prompt(tokens: int, expected: str) -> None:
    request = appraise(ask(tokens=tokens), [load_of("a")], SETTINGS)
    assert request.work_class == expected


def test_a_hit_makes_a_long_prompt_small() -> None:
    hit = ask(PREFILL, 100_000, Match({"b": 99}, {"b": 99_000.0}))
    assert appraise(hit, [load_of("a"), load_of("b")], SETTINGS).work_class is DECODE
    assert appraise(hit, [load_of("a")], SETTINGS).work_class is PREFILL


def test_the_work_at_the_best_backend_counts() -> None:
    slow, fast = BackendLoad("a", prefill_rate=2_000), BackendLoad("b", prefill_rate=50_000)
    assert appraise(ask(tokens=5_000), [slow], SETTINGS).work_class is PREFILL
    assert appraise(ask(tokens=5_000), [slow, fast], SETTINGS).work_class is DECODE


def test_the_first_token_is_due_by_the_settings_or_by_the_clients_word() -> None:
    def due(tokens: int, target: float | None = None) -> float:
        request = replace(ask(tokens=tokens), now=100.0)
        return appraise(request, [load_of("a")], SETTINGS, target).deadline - 100.0

    assert due(1_000) == 2.0
    assert due(20_000) == pytest.approx(6.0)
    assert due(20_000, 0.5) == 0.5


def test_a_pool_without_backends_is_no_obstacle() -> None:
    assert appraise(ask(tokens=100), [], SETTINGS).work_class is DECODE
