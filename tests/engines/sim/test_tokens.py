"""The tokenizer is invertible and its cuts are local."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sim import text, tokens


@given(st.text())
def test_decode_undoes_encode(value: str) -> None:
    assert tokens.decode(tokens.encode(value)) == value


@given(st.text(max_size=40), st.integers(0, 2**32 - 1))
def test_a_reply_appended_to_its_prompt_keeps_the_prompts_ids(prompt: str, seed: int) -> None:
    ids = tokens.encode(prompt)
    said: list[int] = []
    state, last = text.digest(ids), ids[-1] if ids else 0
    for _ in range(12):
        last = text.next_token(state, last, seed)
        state = text.extend(state, last)
        said.append(last)
    if prompt and prompt[-1] not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~":
        whole = prompt + tokens.decode(said)
        assert tokens.encode(whole)[: len(ids)] == ids
        assert tokens.encode(whole) == ids + said


def test_words_cost_one_token() -> None:
    assert len(tokens.encode("The water over the house")) == 5
    assert len(set(tokens.WORDS)) == len(tokens.WORDS) == 256


def test_special_texts_in_content_are_text() -> None:
    ids = tokens.encode("<|assistant|>")
    assert tokens.ASSISTANT not in ids
    assert tokens.decode([tokens.ASSISTANT]) == "<|assistant|>"


@pytest.mark.parametrize("bad", [700, 1 << 25, -1])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="out of vocabulary"):
        tokens.decode([bad])


def test_a_conversation_extends_its_earlier_turns() -> None:
    first = [{"role": "user", "content": "how are you"}]
    more = [*first, {"role": "assistant", "content": "Well"}, {"role": "user", "content": "good"}]
    one = tokens.render_chat(first)
    assert tokens.render_chat(more)[: len(one)] == one


def test_a_continued_message_stays_open() -> None:
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Then"}]
    ids = tokens.render_chat(said, None, False, True)
    assert ids[-1] == tokens.encode("Then")[-1]
    assert tokens.render_chat(said)[-2:] == [tokens.END, tokens.ASSISTANT]


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown message role `bot`"):
        tokens.render_chat([{"role": "bot", "content": "x"}])


@given(st.lists(st.integers(0, 1 << 24)), st.lists(st.integers(0, 1 << 24)))
def test_the_digest_is_incremental(a: list[int], b: list[int]) -> None:
    assert text.digest(a + b) == text.digest(b, text.digest(a))


def test_block_digests_are_those_of_the_prefixes() -> None:
    ids = list(range(10))
    assert text.block_digests(ids, 10, 4) == [
        text.digest(ids[:4]), text.digest(ids[:8]), text.digest(ids)]
