"""How one model reads prompts: its tokenizer and its chat templates, loaded from its files.

Invariant: `read` and `prompt` give what the engine would, or say that they do not know; whether
that holds for the engines there are is compared at start (`probes`), not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.vllm.chat import EngineOptions, ModelPrompt, NotKnown, PromptInput, load, read
from native._core import Prompt, Template, Tokenizer

CACHE_BYTES = 64 << 20  # of texts and their ids, per tokenizer
# What is read on the event loop: a millisecond of it at most. Larger goes to a thread.
BODY_INLINE = 64 << 10  # bytes of JSON
OBJECTS_INLINE = 300  # messages, parts, tools: each has its work
TEXT_INLINE = {"fastokens": 32 << 10, "tokenizers": 1 << 10}  # bytes that no cache holds


@dataclass(frozen=True, slots=True)
class Vocabulary:
    folder: str
    tokenizer: Tokenizer
    model: ModelPrompt
    text_inline: int

    @classmethod
    def load(cls, path: str, chat_template: str) -> Vocabulary:
        """From a tokenizer.json and what lies beside it. `chat_template`: a file, "" = the
        model's. Takes seconds; raises ValueError or OSError, whose text says what is wrong.
        """
        folder = Path(path).parent
        text = Path(chat_template).read_text(encoding="utf-8") if chat_template else None
        try:
            model = load(folder, EngineOptions(chat_template=text))
        except NotKnown as error:
            raise ValueError(error.reason) from None
        model.prove(Template)
        tokenizer = Tokenizer(path, CACHE_BYTES)
        return cls(str(folder), tokenizer, model, TEXT_INLINE[tokenizer.kind])

    def read(self, path: bytes, body: bytes) -> PromptInput:
        """What the engine will make of a request."""
        return read(path.decode("ascii", "replace"), body, self.model)

    @staticmethod
    def reads_quickly(body: bytes) -> bool:
        """Whether `read` is quick enough for the event loop."""
        return len(body) <= BODY_INLINE and body.count(b"{") <= OBJECTS_INLINE

    def is_quick(self, text: str) -> bool:
        """Whether `prompt` is quick enough for the event loop."""
        return len(text) <= self.text_inline or (
            self.tokenizer.cost_bytes(text) <= self.text_inline
        )

    def prompt(
        self,
        text: str,
        special: bool,
        scope: tuple[str | None, str | None],
        block_sizes: Sequence[int] = (),
    ) -> Prompt:
        """`special`: with the tokens that the tokenizer adds by itself; `scope`: adapter, salt.
        Raises ValueError.
        """
        return self.tokenizer.prompt(text, special, *scope, block_sizes)
