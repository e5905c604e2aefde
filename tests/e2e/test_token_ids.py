"""Ids of real tokenizers, which registries have: those of the tokenizers library, in every way."""

from __future__ import annotations

import array
import random
from functools import cache

import pytest
from harness import tokenizers

from native._core import Tokenizer

CASES = tokenizers.cases()
NAMES = sorted({case.tokenizer for case in CASES})
# What `fastokens` does not take, and why it is here: the other library must then do.
SLOW = {"claude", "gpt-4o"}


@cache
def loaded(name: str, kind: str) -> Tokenizer:
    case = next(case for case in CASES if case.tokenizer == name)
    return Tokenizer(tokenizers.fetch(case), kind=kind)


@pytest.mark.parametrize("kind", ["auto", "tokenizers"])
@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_python_package(name: str, kind: str) -> None:
    tokenizer = loaded(name, kind)
    wanted = "fastokens" if kind == "auto" and name not in SLOW else "tokenizers"
    assert tokenizer.kind == wanted, tokenizer.refused
    for _ in range(2):
        for case in CASES:
            if case.tokenizer == name:
                ids = array.array("I", tokenizer.encode(case.text, case.add_special_tokens))
                assert ids.tolist() == case.ids, case.text


@pytest.mark.parametrize("name", NAMES)
def test_cutting_cannot_be_seen_in_the_ids(name: str) -> None:
    chance = random.Random(name)
    whole, auto, slow = (loaded(name, kind) for kind in ("whole", "auto", "tokenizers"))
    fragments = [case.text for case in CASES if case.tokenizer == name]
    fragments += ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<think>", "</think>"]
    fragments.append("<\uff5cUser\uff5c>")
    fragments += ["<start_of_turn>", "<end_of_turn>\n", "<|start|>", "<|message|>", "<EOT>", " "]
    for _ in range(60):
        text = "".join(chance.choices(fragments, k=chance.randint(1, 12)))
        for special in (False, True):
            ids = whole.encode(text, special)
            assert auto.encode(text, special) == ids, text
            assert slow.encode(text, special) == ids, text
