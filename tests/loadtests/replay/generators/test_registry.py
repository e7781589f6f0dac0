from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from gateway.config import ConfigError
from loadtests.replay.generators.registry import GENERATORS, find
from loadtests.replay.generators.session import ANSWER_SECONDS, ANSWER_TOKEN_SECONDS
from loadtests.replay.trace import Trace


def made(text: str, seed: int = 1) -> Trace:
    return find(f"gen:{text}")(seed)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_gives_a_sound_trace(name: str) -> None:
    trace = made(f"{name}?seconds=300")
    arrivals = [request.arrival for request in trace.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] < 300
    for place, request in enumerate(trace.requests):
        assert request.input_tokens >= 1
        assert request.output_tokens >= 1
        assert len(request.blocks) == request.input_tokens // 512
        if request.parent is not None:
            parent = trace.requests[request.parent]
            assert request.parent < place
            answer = ANSWER_SECONDS + ANSWER_TOKEN_SECONDS * parent.output_tokens
            gap = request.arrival - parent.arrival
            assert gap == pytest.approx(answer + request.think)
    followers: dict[int, set[int | None]] = {}
    for request in trace.requests:
        for before, block in zip((None, *request.blocks), request.blocks, strict=False):
            followers.setdefault(block, set()).add(before)
    assert all(len(before) == 1 for before in followers.values()), "a block has one prefix"


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_gives_the_same_trace_again_and_another_another(name: str) -> None:
    text = f"{name}?seconds=100"
    assert made(text) == made(text)
    assert made(text).digest != made(text, 2).digest
    assert made(f"{text}&seed=7").digest != made(text).digest


@pytest.mark.parametrize("name", GENERATORS)
def test_the_rate_is_what_was_asked_for(name: str) -> None:
    trace = made(f"{name}?seconds=4000&rate=2")
    assert len(trace.requests) / 4000 == pytest.approx(2, rel=0.2)


def test_a_conversation_sends_its_turns_again() -> None:
    trace = made("chat?seconds=600")
    turns = [request for request in trace.requests if request.parent is not None]
    assert len(turns) > len(trace.requests) / 2
    for turn in turns:
        assert turn.parent is not None
        parent = trace.requests[turn.parent]
        assert turn.blocks[: len(parent.blocks)] == parent.blocks
        assert turn.input_tokens > parent.input_tokens + parent.output_tokens


def test_questions_about_a_document_share_no_more_than_the_document() -> None:
    trace = made("documents?seconds=600")
    pairs = [
        (trace.requests[request.parent], request)
        for request in trace.requests
        if request.parent is not None
    ]
    assert pairs
    for before, after in pairs:
        shared = len(set(before.blocks) & set(after.blocks))
        assert shared >= (min(before.input_tokens, after.input_tokens) - 2000) // 512
        assert after.blocks[shared:] == () or after.blocks[shared:] != before.blocks[shared:]


def test_agents_share_a_description_of_tools_in_two_calls_of_five() -> None:
    trace = made("agents?seconds=1200")
    first, count = Counter(request.blocks[:1] for request in trace.requests).most_common(1)[0]
    calls = [request for request in trace.requests if request.max_tokens is not None]
    assert len(calls) / len(trace.requests) == pytest.approx(0.4, abs=0.08)
    assert count > len(calls) / 2
    assert all(3 <= call.output_tokens <= 80 for call in calls)
    hot = [call for call in calls if call.blocks[:1] == first]
    assert len(set.intersection(*(set(call.blocks) for call in hot))) == 12


def test_bursts_are_bursts() -> None:
    arrivals = [request.arrival for request in made("bursts").requests]
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert pstdev(gaps) / fmean(gaps) > 3


def test_tenants_share_the_conversations_unevenly() -> None:
    trace = made("chat?tenants=3&seconds=600")
    shares = Counter(request.tenant for request in trace.requests)
    assert len(shares) == 3
    assert shares["tenant-0"] > 1.5 * shares["tenant-2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gen:nothing", "unknown generator, expected one of agents"),
        ("gen:chat?colour=red", "colour"),
        ("gen:chat?rate=-1", "rate"),
        ("gen:chat?rate=fast", "rate"),
        ("gen:chat?seed=x", "'x'"),
        ("gen:chat?rate", "rate"),
        ("gen:mix?agents_share=0.8&documents_share=0.4", "more than 1"),
    ],
)
def test_what_is_not_allowed_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        find(text)
