"""Pieces of event streams that several endpoints write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from . import tokens
from .errors import error_body
from .vocabulary import Vocabulary

DONE = b"data: [DONE]\n\n"


def data(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"


def error_event(message: str) -> bytes:
    """What vLLM writes into a stream whose generation failed."""
    return data(error_body(message, "InternalServerError", 500))


def token_text(token: int, words: Vocabulary) -> str:
    return words.piece(token).decode("utf-8", "replace")


def logprobs_content(ids: Iterable[int], top: int, words: Vocabulary) -> list[dict[str, Any]]:
    """Chat log probabilities: the simulated model is always equally sure."""
    out = []
    for token in ids:
        others = (words.reply(tokens.word_token(i, False)) for i in range(top))
        own = _logprob(token, 0, words)
        own["top_logprobs"] = [
            _logprob(t, rank, words) for rank, t in enumerate([token, *others][:top])]
        out.append(own)
    return out


def _logprob(token: int, rank: int, words: Vocabulary) -> dict[str, Any]:
    return {"token": token_text(token, words), "logprob": -0.5 - rank,
            "bytes": list(words.piece(token))}


def logprobs_lists(ids: Iterable[int], offset: int, words: Vocabulary) -> dict[str, Any]:
    """Completion log probabilities; `offset` = characters before the first token."""
    texts = [token_text(i, words) for i in ids]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {"text_offset": offsets, "token_logprobs": [-0.5] * len(texts), "tokens": texts,
            "top_logprobs": [{t: -0.5} for t in texts]}
