import asyncio
from typing import cast

import msgspec
import pytest

from loadtests.client import Answer, Client, Usage
from loadtests.player import play
from loadtests.sample import Sample
from loadtests.workload import Kind, Session, Turn

CHAT = Session(
    "chat-0", Kind.CHAT, 0.02, "be brief", (Turn("one", 8), Turn("two", 9, 0.01), Turn("three", 8))
)
ONE_OFF = Session("one-off-0", Kind.ONE_OFF, 0.0, "be brief", (Turn("hello", 5),))


class Engine:
    """Answers "answer N" to the Nth request; fails the one that says so."""

    def __init__(self, fails: str = "") -> None:
        self.bodies: list[dict[str, object]] = []
        self._fails = fails

    async def post(self, path: str, body: bytes) -> Answer:
        now = asyncio.get_running_loop().time()
        request = msgspec.json.decode(body)
        self.bodies.append(request)
        answer = Answer(sent=now, status=200, first=now + 0.5, last=now + 0.7, ended=now + 0.8)
        answer.headers[b"x-prefixgate-backend"] = b"b1"
        answer.text = f"answer {len(self.bodies)}"
        answer.usage = Usage(prompt_tokens=10, completion_tokens=3)
        if request["messages"][-1]["content"] == self._fails:
            answer.error = "HTTP 500"
        await asyncio.sleep(0)
        return answer

    def turns(self) -> list[list[dict[str, str]]]:
        return [cast(list[dict[str, str]], body["messages"]) for body in self.bodies]


def run(engine: Engine, *sessions: Session) -> list[Sample]:
    return asyncio.run(play(cast(Client, engine), "m", sessions)).samples


def test_a_turn_begins_with_all_of_the_turn_before_and_its_answer() -> None:
    engine = Engine()
    run(engine, CHAT)
    first, second, third = engine.turns()
    assert first == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
    ]
    assert second == [
        *first,
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "two"},
    ]
    assert third[: len(second)] == second


def test_requests_ask_for_a_stream_with_usage() -> None:
    engine = Engine()
    run(engine, ONE_OFF)
    [body] = engine.bodies
    assert body["model"] == "m"
    assert body["max_tokens"] == 5
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_sessions_start_at_their_arrival() -> None:
    samples = run(Engine(), CHAT, ONE_OFF)
    assert [(s.session, s.turn) for s in samples] == [
        ("one-off-0", 0),
        ("chat-0", 0),
        ("chat-0", 1),
        ("chat-0", 2),
    ]
    # A loop's timers may be early by its clock's resolution.
    assert samples[1].sent >= CHAT.arrival - 0.001
    assert samples[2].sent - samples[1].sent >= CHAT.turns[1].think - 0.001


def test_samples_hold_what_was_measured() -> None:
    [sample] = run(Engine(), ONE_OFF)
    assert sample.ttft == pytest.approx(0.5)
    assert sample.tpot == pytest.approx(0.1)
    assert sample.seconds == pytest.approx(0.8)
    assert (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens) == (10, 0, 3)
    assert sample.backend == "b1"


def test_a_session_ends_with_its_first_failure() -> None:
    samples = run(Engine(fails="two"), CHAT, ONE_OFF)
    assert [(s.session, s.error) for s in samples] == [
        ("one-off-0", None),
        ("chat-0", None),
        ("chat-0", "HTTP 500"),
    ]


def test_what_the_observer_raises_ends_the_run() -> None:
    def observe(sample: Sample) -> None:
        raise LookupError(sample.session)

    engine = Engine()
    with pytest.raises(LookupError, match="one-off-0"):
        asyncio.run(play(cast(Client, engine), "m", [CHAT, ONE_OFF], observe))
    assert len(engine.bodies) == 1


def test_a_busy_loop_shows_as_lag() -> None:
    class Busy(Engine):
        async def post(self, path: str, body: bytes) -> Answer:
            await asyncio.sleep(0.03)  # the watch has begun
            loop = asyncio.get_running_loop()
            end = loop.time() + 0.1
            while loop.time() < end:
                pass
            await asyncio.sleep(0.03)
            return await super().post(path, body)

    recording = asyncio.run(play(cast(Client, Busy()), "m", [ONE_OFF]))
    assert max(recording.lags) > 0.05
