"""What a reply says of its prompt's tokens is put right where two engines had a part in it."""

from __future__ import annotations

import pytest

from native.relay import Edits

COUNTS = Edits().with_usage(32, 64)
CHAT = (
    b'{"choices":[{"text":"\\"usage\\":{\\"cached_tokens\\":7}"}],"usage":{"prompt_tokens":101,'
    b'"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":%b}}}'
)
MESSAGE = (
    b'{"content":[],"usage":{"input_tokens":%d,"output_tokens":3,'
    b'"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d}}'
)
RESPONSE = (
    b'{"usage":{"input_tokens":101,"input_tokens_details":{"cached_tokens":%d,'
    b'"cache_write_tokens":%d}}}'
)


@pytest.mark.parametrize("reply", [CHAT % (96, b"0"), CHAT % (0, b" 128"), CHAT % (32, b"64")])
def test_chat(reply: bytes) -> None:
    assert COUNTS.json(reply).replace(b": ", b":") == CHAT % (32, b"64")
    assert COUNTS.event(b"data: " + reply + b"\n\n") == b"data: " + COUNTS.json(reply) + b"\n\n"


def test_a_count_that_is_not_given_stays_away() -> None:
    assert COUNTS.json(CHAT % (96, b"null")) == CHAT % (32, b"null")
    assert COUNTS.json(b'{"usage":{"prompt_tokens":5}}') == b'{"usage":{"prompt_tokens":5}}'
    assert COUNTS.json(b'{"cached_tokens":5}') == b'{"cached_tokens":5}'


def test_messages_count_apart_what_was_put_into_the_cache() -> None:
    assert COUNTS.json(MESSAGE % (69, 0, 32)) == MESSAGE % (5, 64, 32)
    assert Edits().with_usage(-1, 64).json(MESSAGE % (1, 0, 9)) == MESSAGE % (0, 64, 9)
    # An engine that was handed a prompt of 101 tokens may say that it found all of them.
    assert COUNTS.json(MESSAGE % (0, 0, 101)) == MESSAGE % (5, 64, 32)
    assert Edits().with_usage(0, -1).json(MESSAGE % (0, 0, 101)) == MESSAGE % (101, 0, 0)
    start = b'{"message":{"usage":{"input_tokens":101,"output_tokens":0}}}'
    assert COUNTS.event(start) == start


def test_responses() -> None:
    assert COUNTS.json(RESPONSE % (96, 0)) == RESPONSE % (32, 64)


def test_one_count_leaves_the_other() -> None:
    assert Edits().with_usage(-1, 64).json(CHAT % (9, b"0")) == CHAT % (9, b"64")
    assert Edits().with_usage(9, -1).json(CHAT % (0, b"3")) == CHAT % (9, b"3")
    assert Edits().with_usage(-1, -1).json(CHAT % (0, b"3")) == CHAT % (0, b"3")
    named = Edits(b"alias").with_usage(1, 2).json(b'{"model":"m","usage":{"cached_tokens":0}}')
    assert named == b'{"model":"alias","usage":{"cached_tokens":1}}'
