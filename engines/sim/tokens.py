"""The simulated engine's tokenizer and chat template.

Deterministic, stateless and invertible: an id says its bytes. 0-255 are single bytes, 256-262
special tokens, 1024 upward the words of a fixed table (with a leading space, and capitalised
without one), 4096 upward two bytes, 131072 upward three. Text is first cut into pieces (a word
with its leading space, digits, punctuation, line breaks, single spaces), so what a prompt ends
with never changes how the text after it is cut: ids(prompt + reply) = ids(prompt) + ids(reply)
for every reply this engine makes.

The chat template is `<|ROLE|>CONTENT<|end|>` per message and `<|assistant|>` to open the reply.
Tool definitions go into the first system turn as one JSON line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

_WORD_TEXT = (
    "the of and to in is that it for was on are as with they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how "
    "up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also "
    "around another came come work three word must because does part even place well such here "
    "take why things help put years different away again off went old number great tell men say "
    "small every found still between name should home big give air line set own under read last "
    "never us left end along while might next sound below saw something thought both few those "
    "always looked show large often together asked house world going want school important "
    "until form food keep children feet land side without boy once animals life enough took "
    "sometimes four head above kind began almost live page got earth need far hand high year "
    "mother light parts country father let night following picture being study second eyes soon "
    "times story boys since white days ever paper hard near sentence better best across during "
    "today"
)
WORDS = tuple(_WORD_TEXT.split())

SPECIAL = ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>",
           "<|developer|>")
_SPECIAL_BASE, _WORD_BASE, _TITLE_BASE, _PAIR_BASE, _TRIPLE_BASE = 256, 1024, 2048, 4096, 131_072
EOS = _SPECIAL_BASE
END = _SPECIAL_BASE + 1
ASSISTANT = _SPECIAL_BASE + 4
FULL_STOP = ord(".")
VOCAB_SIZE = _TRIPLE_BASE + (1 << 24)
_ROLES = {name[2:-2]: _SPECIAL_BASE + i for i, name in enumerate(SPECIAL) if i >= 2}

_PIECES = re.compile(r" ?[A-Za-z]+|[0-9]{1,3}|[^\S ]+| |[^A-Za-z0-9\s]+")
_PIECE_CACHE_MAX = 1 << 16
_cache: dict[str, tuple[int, ...]] = {}
_table: dict[str, int] = {}
for _i, _word in enumerate(WORDS):
    _table[" " + _word] = _WORD_BASE + _i
    _table[_word.capitalize()] = _TITLE_BASE + _i
_strings = {i: s.encode() for s, i in _table.items()}
_strings.update({_SPECIAL_BASE + i: s.encode() for i, s in enumerate(SPECIAL)})
_strings.update({i: bytes((i,)) for i in range(256)})


def word_token(index: int, opening: bool) -> int:
    """The id of a word of the table; `opening` gives the capitalised one without a space."""
    return (_TITLE_BASE if opening else _WORD_BASE) + index % len(WORDS)


def _split(piece: str) -> tuple[int, ...]:
    known = _table.get(piece)
    if known is not None:
        return (known,)
    data = piece.encode("utf-8", "surrogatepass")
    ids = []
    for at in range(0, len(data), 3):
        part = data[at : at + 3]
        value = int.from_bytes(part, "big")
        ids.append(value + (0, _PAIR_BASE, _TRIPLE_BASE)[len(part) - 1])
    return tuple(ids)


def encode(text: str) -> list[int]:
    """Token ids of plain text; special tokens in it are text."""
    ids: list[int] = []
    for piece in _PIECES.findall(text):
        known = _cache.get(piece)
        if known is None:
            if len(_cache) >= _PIECE_CACHE_MAX:
                _cache.clear()
            known = _cache[piece] = _split(piece)
        ids += known
    return ids


def token_bytes(token: int) -> bytes:
    """The bytes of one id. Raises ValueError for an id that is none."""
    known = _strings.get(token)
    if known is not None:
        return known
    if _PAIR_BASE <= token < _PAIR_BASE + (1 << 16):
        return (token - _PAIR_BASE).to_bytes(2, "big")
    if _TRIPLE_BASE <= token < VOCAB_SIZE:
        return (token - _TRIPLE_BASE).to_bytes(3, "big")
    raise ValueError(f"token id {token} is out of vocabulary")


def decode(ids: Iterable[int]) -> str:
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


def content_text(content: object) -> str:
    """Text of a message's content: a string, null, or parts of which the text is joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping):
                kind = part.get("type", "text")
                texts.append(str(part["text"]) if "text" in part else f"[{kind}]")
        return "\n".join(texts)
    raise ValueError("message content must be a string or a list of parts")


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """Token ids of a conversation. Raises ValueError on a role the template does not know."""
    ids: list[int] = []
    if tools:
        ids.append(_ROLES["system"])
        for tool in tools:
            ids += encode(orjson.dumps(tool, option=orjson.OPT_SORT_KEYS).decode() + "\n")
        ids.append(END)
    last = len(messages) - 1
    for at, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise ValueError(f"unknown message role `{role}`")
        ids.append(_ROLES[role])
        ids += encode(content_text(message.get("content")))
        for call in message.get("tool_calls") or ():
            ids += encode(orjson.dumps(call, option=orjson.OPT_SORT_KEYS).decode())
        if not (continue_final_message and at == last):
            ids.append(END)
    if add_generation_prompt and not continue_final_message:
        ids.append(ASSISTANT)
    return ids
