"""A small model's files: a byte-level BPE tokenizer and a chat template.

Every byte is a token, the words of the simulated model are one token each, with a blank before them
or capitalised; special tokens open and close the turns. Nothing is read from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.sim.tokens import WORDS

SPECIAL = ("<|end_of_text|>", "<|start|>", "<|end|>")
TEMPLATE = (
    "{%- if tools %}<|start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|end|>\n{% endif -%}"
    "{%- for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}[{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}]{% endfor %}<|end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|start|>assistant\n{% endif -%}"
)
STRICT = "{%- if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"


def bytes_to_letters() -> dict[int, str]:
    """GPT-2's way to write any byte as a printable letter."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    odd = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + at) for at, byte in enumerate(odd)}


def _merges(letters: dict[int, str]) -> Iterator[tuple[str, str]]:
    """From left to right, so that every word is one token."""
    for word in (*(f" {w}" for w in WORDS), *(w.capitalize() for w in WORDS)):
        written = [letters[byte] for byte in word.encode()]
        for at in range(1, len(written)):
            yield "".join(written[:at]), written[at]


def write(folder: Path, template: str = TEMPLATE, shift: int = 0) -> Path:
    """`shift` moves the ids of all words: another model's tokenizer that looks alike."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = bytes_to_letters()
    merges = list(dict.fromkeys(_merges(letters)))
    tokens = [*(letters[byte] for byte in range(256)), *("".join(pair) for pair in merges)]
    vocabulary = {text: at if at < 256 else at + shift for at, text in enumerate(tokens)}
    added = [
        {"id": len(vocabulary) + shift + at, "content": text, "special": True, "lstrip": False,
         "rstrip": False, "normalized": False, "single_word": False}
        for at, text in enumerate(SPECIAL)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}  # fmt: skip
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocabulary, "merges": [list(pair) for pair in merges],
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level, "model": model,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"eos_token": SPECIAL[0], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
