"""A prompt: packed ids, their scope, and the hashes of their blocks."""

from __future__ import annotations

import struct

import pytest

from native._core import Prompt


def pack(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def test_ids_come_back_as_they_were() -> None:
    ids = [0, 1, 32000, 2**32 - 1]
    prompt = Prompt(pack(ids))
    assert prompt.ids() == pack(ids) == Prompt.of_list(ids).ids()
    assert (prompt.tokens, prompt.exact) == (4, True)
    assert Prompt(b"", exact=False).exact is False
    assert repr(Prompt(b"", exact=False)) == "<Prompt of 0 tokens, approximate>"


@pytest.mark.parametrize("ids", [[-1], [2**32], [1, "2"], [1.5], [None]])
def test_what_is_no_token_id_is_refused_with_its_place(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"item {len(ids) - 1} of the prompt"):
        Prompt.of_list(ids)


def test_half_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="7 bytes are no packed ids"):
        Prompt(b"1234567")


def test_there_is_a_hash_for_every_full_block() -> None:
    prompt = Prompt.of_list(list(range(100)))
    assert [len(prompt.hashes(size)) for size in (1, 16, 32, 100, 101)] == [800, 48, 24, 8, 0]
    with pytest.raises(ValueError, match="at least one token"):
        prompt.hashes(0)


def test_scope_is_part_of_every_hash() -> None:
    def hashes(lora: str | None, salt: str | None) -> bytes:
        return Prompt.of_list([7] * 32, lora, salt).hashes(16)

    scopes = [(None, None), ("a", None), (None, "a"), ("a", "a"), ("a", "b"), ("b", "a")]
    assert len({hashes(*scope)[at : at + 8] for scope in scopes for at in (0, 8)}) == 12
    assert hashes("", "") == hashes(None, None)


def test_a_shared_prefix_has_the_same_hashes() -> None:
    short, long = Prompt.of_list(list(range(64))), Prompt.of_list([*range(64), *range(900, 964)])
    assert long.hashes(16).startswith(short.hashes(16))
