from __future__ import annotations

import base64
import random

import pytest

from gateway.estimates.tokens import MAX_BYTES, MIN_BYTES, Content, TokenEstimate, content_of

PROSE = b"The engine keeps what it has computed until its place is needed. " * 40
CODE = b'    if x[i] != {"a": 1}:\n        return f(x, y[0], "%s")\n' * 40
CHINESE = "引擎保留它计算过的内容直到需要它的位置。".encode() * 40
RUSSIAN = "Движок хранит то, что он вычислил, пока место не понадобится. ".encode() * 40
GERMAN = "Größe und Länge überschätzt für größere Blöcke, müßig. ".encode() * 40


@pytest.mark.parametrize(
    ("key", "content"),
    [
        (PROSE, Content.PROSE),
        (CODE, Content.MARKUP),
        (base64.b64encode(random.Random(1).randbytes(2_000)), Content.DENSE),
        (CHINESE, Content.WIDE),
        (RUSSIAN, Content.TWO_BYTE),
        (GERMAN, Content.MIXED),
        (b"\xffuser\xfe" + PROSE + b"\xffassistant\xfe" + PROSE, Content.PROSE),
        (PROSE[:20], Content.PROSE),
        (b"", Content.MARKUP),
    ],
)
def test_content_is_told_by_a_sample(key: bytes, content: Content) -> None:
    assert content_of(key) is content


def test_the_sample_is_spread_over_the_key() -> None:
    assert content_of(PROSE[:90] + CHINESE * 20) is Content.WIDE
    assert content_of(CHINESE[:96] + PROSE * 20) is Content.MIXED


def test_nominal_until_something_is_learnt() -> None:
    tokens = TokenEstimate()
    assert tokens.estimate("m", Content.PROSE, 4_000) == 1_000
    assert tokens.estimate("m", Content.PROSE, 1) == 1
    assert tokens.estimate("m", Content.PROSE, 0) == 0


def teach(tokens: TokenEstimate, content: Content, ratio: float, times: int = 100) -> None:
    for _ in range(times):
        tokens.learn("m", content, int(1_000 * ratio), 1_000)


def test_each_content_of_a_model_has_its_ratio() -> None:
    tokens = TokenEstimate()
    teach(tokens, Content.PROSE, 4.6)
    teach(tokens, Content.WIDE, 2.5)
    assert tokens.estimate("m", Content.PROSE, 46_000) == pytest.approx(10_000, rel=0.02)
    assert tokens.estimate("m", Content.WIDE, 25_000) == pytest.approx(10_000, rel=0.02)
    assert tokens.bytes_per_token("m") == pytest.approx(3.55, rel=0.02)
    assert tokens.bytes_per_token("other", Content.WIDE) == 4.0


def test_content_not_seen_leans_on_the_model() -> None:
    tokens = TokenEstimate()
    teach(tokens, Content.WIDE, 2.0)
    assert tokens.bytes_per_token("m", Content.MARKUP) == pytest.approx(2.0, rel=0.05)
    tokens.learn("m", Content.MARKUP, 300, 100)
    assert tokens.bytes_per_token("m", Content.MARKUP) < 2.2


def test_short_prompts_and_single_reports_move_little() -> None:
    tokens = TokenEstimate()
    teach(tokens, Content.PROSE, 4.5)
    tokens.learn("m", Content.PROSE, 2, 30)
    tokens.learn("m", Content.PROSE, 10_000_000, 1_000_000)
    assert tokens.bytes_per_token("m", Content.PROSE) == pytest.approx(4.5, rel=0.06)


@pytest.mark.parametrize(("size", "bound"), [(1, MIN_BYTES), (1_000_000, MAX_BYTES)])
def test_absurd_reports_stay_within_bounds(size: int, bound: float) -> None:
    tokens = TokenEstimate()
    for _ in range(2_000):
        tokens.learn("m", Content.DENSE, size, 1_000)
    assert tokens.bytes_per_token("m", Content.DENSE) == pytest.approx(bound, rel=0.1)
    tokens.learn("m", Content.DENSE, 0, 10)
    tokens.learn("m", Content.DENSE, 10, 0)
    assert tokens.bytes_per_token("m", Content.DENSE) == pytest.approx(bound, rel=0.1)


def test_a_new_tokenizer_is_learnt_in_time() -> None:
    tokens = TokenEstimate()
    teach(tokens, Content.PROSE, 4.5, 1_000)
    teach(tokens, Content.PROSE, 3.0, 1_000)
    assert tokens.bytes_per_token("m", Content.PROSE) == pytest.approx(3.0, rel=0.03)


def test_token_ids_are_exact_and_teach_nothing() -> None:
    tokens = TokenEstimate()
    assert content_of(b"\x01\x02\x03\x00" * 100, is_ids=True) is Content.IDS
    teach(tokens, Content.WIDE, 2.0)
    teach(tokens, Content.IDS, 3.0)
    assert tokens.estimate("m", Content.IDS, 400) == 100
    assert tokens.bytes_per_token("m") == pytest.approx(2.0, rel=0.05)


def test_models_are_bounded_and_the_one_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.estimates.tokens._MAX_MODELS", 8)
    tokens = TokenEstimate()
    for number in range(100):
        teach(tokens, Content.PROSE, 2.0, 10)
        tokens.learn(f"m{number}", Content.PROSE, 2_000, 1_000)
    assert len(tokens._models) == 8
    assert tokens.bytes_per_token("m", Content.PROSE) < 2.1
