"""Prompts: exact in length, the same for the same block, other text for another salt."""

import json
from typing import Any

import pytest

from gateway.load.offer import Offer
from gateway.load.prompts import IDS, Asking, Scale, Writer


def body(writer: Writer, offer: Offer, number: int = 0) -> dict[str, Any]:
    return json.loads(b"".join(writer.parts(offer, number)))


def ids(offer: Offer, number: int = 0, salt: str = "a") -> list[int]:
    return body(Writer(Asking("m"), 16, salt), offer, number)["prompt"]


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 40, 5000])
@pytest.mark.parametrize("blocks", [(), (1, 2, 3)])
def test_a_prompt_has_as_many_tokens_as_planned(tokens: int, blocks: tuple[int, ...]) -> None:
    found = ids(Offer(0, tokens, 1, blocks))
    assert len(found) == tokens and all(IDS[0] <= one < IDS[1] for one in found)


def test_the_same_blocks_are_the_same_tokens() -> None:
    one, two = ids(Offer(0, 40, 1, (7, 8, 9))), ids(Offer(0, 48, 1, (7, 8, 10)), number=5)
    assert one[:32] == two[:32] and one[32:] != two[32:40]


def test_a_prompt_without_blocks_shares_nothing() -> None:
    assert ids(Offer(0, 40, 1), number=1)[:16] != ids(Offer(0, 40, 1), number=2)[:16]


def test_another_salt_is_other_text() -> None:
    assert ids(Offer(0, 16, 1, (7,))) != ids(Offer(0, 16, 1, (7,)), salt="b")


def test_an_answer_is_as_long_as_planned_where_the_engine_can() -> None:
    found = body(Writer(Asking("m"), 16, "a"), Offer(0, 5, 9))
    assert (found["max_tokens"], found["min_tokens"], found["ignore_eos"]) == (9, 9, True)
    assert found["stream"] and found["stream_options"] == {"include_usage": True}
    plain = body(Writer(Asking("m", exact=False), 16, "a"), Offer(0, 5, 9))
    assert not {"min_tokens", "ignore_eos"} & set(plain)


def test_a_chat_has_words_by_the_engines_count() -> None:
    scale = Scale.of((64, 138), (512, 1034))  # ten of the template, two for each word
    writer = Writer(Asking("m", chat=True), 16, "a", scale)
    found = body(writer, Offer(0, 110, 1, (1, 2, 3, 4, 5, 6, 7)))
    text = found["messages"][0]["content"]
    assert len(text.split()) == 50 and text[0] == " "
    other = body(writer, Offer(0, 110, 1, (1, 2, 3, 9, 9, 9, 9)))["messages"][0]["content"]
    assert text.split()[:24] == other.split()[:24] and text != other


def test_probes_count_words() -> None:
    text = json.loads(Writer(Asking("m", chat=True), 1, "p").probe(64))["messages"][0]["content"]
    assert len(text.split()) == 64
