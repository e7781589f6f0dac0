import dataclasses
from collections import defaultdict

import pytest

from loadtests.workload import TOKEN_BYTES, Kind, Mix, Session, generate, requests

MIX = Mix(chats=30, documents=10, one_offs=20, arrivals=10.0)


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    return generate(MIX, seed=1)


def of_kind(sessions: list[Session], kind: Kind) -> list[Session]:
    return [session for session in sessions if session.kind is kind]


def documents(sessions: list[Session]) -> dict[str, list[Session]]:
    asks = defaultdict(list)
    for session in of_kind(sessions, Kind.DOCUMENT):
        asks[session.name.split("/")[0]].append(session)
    return asks


def tokens(text: str) -> float:
    return len(text.encode()) / TOKEN_BYTES


def test_the_same_seed_gives_the_same_sessions(sessions: list[Session]) -> None:
    assert generate(MIX, seed=1) == sessions


def test_another_seed_gives_others(sessions: list[Session]) -> None:
    other = generate(MIX, seed=2)
    assert not {turn.text for s in sessions for turn in s.turns} & {
        turn.text for s in other for turn in s.turns
    }


def test_changing_one_kind_leaves_the_others(sessions: list[Session]) -> None:
    more = generate(dataclasses.replace(MIX, documents=11), seed=1)
    assert of_kind(more, Kind.CHAT) == of_kind(sessions, Kind.CHAT)
    assert of_kind(more, Kind.ONE_OFF) == of_kind(sessions, Kind.ONE_OFF)


def test_there_are_as_many_of_each_kind_as_asked_for(sessions: list[Session]) -> None:
    assert len(of_kind(sessions, Kind.CHAT)) == MIX.chats
    assert len(documents(sessions)) == MIX.documents
    assert len(of_kind(sessions, Kind.ONE_OFF)) == MIX.one_offs
    assert len({session.name for session in sessions}) == len(sessions)


def test_requests_counts_turns(sessions: list[Session]) -> None:
    chats = sum(len(session.turns) for session in of_kind(sessions, Kind.CHAT))
    asks = len(of_kind(sessions, Kind.DOCUMENT))
    assert requests(sessions) == chats + asks + MIX.one_offs


def test_sessions_come_by_arrival_and_start_in_the_window(sessions: list[Session]) -> None:
    arrivals = [session.arrival for session in sessions]
    assert arrivals == sorted(arrivals)
    starts = [s.arrival for s in sessions if s.kind is not Kind.DOCUMENT]
    starts += [min(ask.arrival for ask in asks) for asks in documents(sessions).values()]
    assert all(0 <= start <= MIX.arrivals for start in starts)


def test_sizes_keep_to_their_spans(sessions: list[Session]) -> None:
    def within(text: str, span: tuple[int, int]) -> bool:
        return span[0] <= tokens(text) <= span[1]

    for session in sessions:
        assert within(session.system, MIX.system_tokens)
        for turn in session.turns:
            assert MIX.answer_tokens[0] <= turn.max_tokens <= MIX.answer_tokens[1]
    for chat in of_kind(sessions, Kind.CHAT):
        assert MIX.chat_turns[0] <= len(chat.turns) <= MIX.chat_turns[1]
        assert within(chat.turns[0].text, MIX.opening_tokens)
        assert all(within(turn.text, MIX.turn_tokens) for turn in chat.turns[1:])
    for one_off in of_kind(sessions, Kind.ONE_OFF):
        assert within(one_off.turns[0].text, MIX.one_off_tokens)


def test_all_sessions_share_a_few_system_prompts(sessions: list[Session]) -> None:
    assert len({session.system for session in sessions}) == MIX.system_prompts


def test_chats_think_before_every_turn_but_the_first(sessions: list[Session]) -> None:
    for chat in of_kind(sessions, Kind.CHAT):
        first, *later = [turn.think for turn in chat.turns]
        assert first == 0
        assert all(MIX.think / 2 <= think <= 3 * MIX.think for think in later)


def test_questions_about_a_document_share_it_and_nothing_more(sessions: list[Session]) -> None:
    for asks in documents(sessions).values():
        assert MIX.questions[0] <= len(asks) <= MIX.questions[1]
        assert len({ask.system for ask in asks}) == 1
        parts = [ask.turns[0].text.split("\n\n") for ask in asks]
        assert len({document for document, _ in parts}) == 1
        assert len({question for _, question in parts}) == len(asks)
        low, high = MIX.document_tokens
        assert low <= tokens(parts[0][0]) <= high


def test_no_two_documents_or_chats_begin_alike(sessions: list[Session]) -> None:
    heads = [s.turns[0].text[:128] for s in of_kind(sessions, Kind.CHAT)]
    heads += [asks[0].turns[0].text[:128] for asks in documents(sessions).values()]
    assert len(set(heads)) == len(heads)
