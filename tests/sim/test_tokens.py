from __future__ import annotations

import pytest

from loadtests.sim import tokens


def test_four_bytes_are_a_token() -> None:
    assert len(tokens.unpack(tokens.encode("abcdefgh"))) == 2
    assert len(tokens.unpack(tokens.encode("abcdefghi"))) == 3
    assert tokens.decode(tokens.encode("naïve über 🦉")) == "naïve über 🦉"


def test_ids_and_text_are_the_same_tokens() -> None:
    packed = tokens.encode("what is a prefix?")
    assert tokens.pack(tokens.unpack(packed)) == packed
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match="token ids"):
            tokens.pack([wrong])


def test_a_chat_goes_on_with_the_tokens_of_its_answer() -> None:
    turn = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    prompt = tokens.render_chat(turn, b'[{"type":"function"}]')
    words = b"".join(tokens.answer("seed", 10))
    reply = {"role": "assistant", "content": words.decode(), "refusal": None}
    follow_up = [*turn, reply, {"role": "user", "content": "Go on."}]
    assert tokens.render_chat(follow_up, b'[{"type":"function"}]').startswith(prompt + words)


@pytest.mark.parametrize(
    "other",
    [
        [{"role": "user", "content": "ab"}, {"role": "user", "content": "cd"}],
        [{"role": "system", "content": "abcd"}],
        [{"role": "user", "content": "abcd", "name": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "abcd"}}]}],
    ],
)
def test_roles_boundaries_names_and_media_are_part_of_the_prompt(
    other: list[dict[str, object]],
) -> None:
    assert tokens.render_chat(other) != tokens.render_chat([{"role": "user", "content": "abcd"}])


def test_text_parts_are_text() -> None:
    parts = [{"type": "text", "text": "abcd"}, {"type": "text", "text": "efgh"}]
    assert tokens.render_chat([{"role": "user", "content": parts}]) == tokens.render_chat(
        [{"role": "user", "content": "abcdefgh"}]
    )


def test_a_hash_stands_for_the_whole_prefix() -> None:
    one = tokens.encode("a" * 64 + "b" * 64 + "c" * 63)
    two = tokens.encode("x" * 64 + "b" * 64 + "c" * 63)
    chain = tokens.chain(b"", one, 16)
    assert len(chain) == 3
    assert chain[:2] == tokens.chain(b"", one[:130], 16)
    assert not set(chain) & set(tokens.chain(b"", two, 16))
    assert not set(chain) & set(tokens.chain(b"salt", one, 16))


def test_answers_repeat_with_their_seed() -> None:
    assert tokens.answer("1", 50) == tokens.answer("1", 50)
    assert tokens.answer("1", 50) != tokens.answer("2", 50)
    assert {len(word) for word in tokens.answer("1", 500)} == {tokens.TOKEN_BYTES}
