"""Token ids as a real model's files give them: `--tokenizer FOLDER`.

Prompts are rendered and tokenised as vLLM does with that model, so that somebody else's tokens can
be held against them. Replies are still the simulated model's words; each is written with the one id
that the model's tokenizer has for it, so that a conversation's next turn finds the blocks that the
reply filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.vllm.chat import EngineOptions, Ids, NotKnown, PromptInput, Texts, load, read
from native._core import Tokenizer

from . import tokens
from .vocabulary import NoPrompt


class Folder:
    """A model's files. Raises ValueError for files that cannot be used."""

    def __init__(self, folder: str, chat_template: str = "") -> None:
        text = Path(chat_template).read_text(encoding="utf-8") if chat_template else None
        try:
            self._model = load(Path(folder), EngineOptions(chat_template=text))
        except NotKnown as exc:
            raise ValueError(exc.reason) from exc
        self._tokenizer = Tokenizer(folder)
        self._replies: dict[int, int] = {}
        self._pieces: dict[int, bytes] = {}

    def chat(self, body: Mapping[str, Any]) -> list[int]:
        return self._ids(read("/v1/chat/completions", dict(body), self._model))

    def text(self, text: str) -> list[int]:
        return self._ids(read("/v1/completions", {"prompt": text}, self._model))

    def _ids(self, found: PromptInput) -> list[int]:
        if isinstance(found, Texts):
            packed = self._tokenizer.encode(found.texts[0], found.add_special_tokens)
            return list(memoryview(packed).cast("I"))
        if isinstance(found, Ids):
            return list(found.prompts[0])
        raise NoPrompt(found.reason)

    def reply(self, token: int) -> int:
        known = self._replies.get(token)
        if known is None:
            text = tokens.token_bytes(token).decode()
            ids = memoryview(self._tokenizer.encode(text, False)).cast("I")
            known = self._replies[token] = ids[0] if len(ids) == 1 else token
            self._pieces[known] = tokens.token_bytes(token)
        return known

    def piece(self, token: int) -> bytes:
        return self._pieces.get(token, b"")
