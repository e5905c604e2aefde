"""One generation in the engine: its tokens, its cache blocks, and who hears of its tokens."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import text, tokens
from .cache import NONE_HASH, Extra, hash_block
from .settings import Lora
from .vocabulary import OWN, Vocabulary


class State(enum.Enum):
    WAITING = 0
    REMOTE = 1  # waits for KV from another engine
    RUNNING = 2
    FINISHED = 3


@dataclass(frozen=True, slots=True)
class Params:
    """What a request asks of one generation. `max_tokens` and `length` count the end token."""

    max_tokens: int
    length: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1
    cache_salt: str | None = None
    lora: Lora | None = None
    session_id: str | None = None
    report_full: bool = False
    kv_transfer_params: Mapping[str, Any] | None = None
    vocabulary: Vocabulary = OWN


# (sequence, text since the last call, token, finish reason or None)
Sink = Callable[["Sequence", str, int, "str | None"], None]


class Sequence:
    """`tokens` = prompt and output; `computed` of them have KV; `stored` blocks are findable."""

    __slots__ = (
        "_hold", "_said", "_sent", "arrival", "blocks", "cached", "computed", "digest", "error",
        "external", "finish_reason", "finished_at", "first_at", "first_scheduled", "hashes",
        "id", "index", "kv_result", "last_at", "local_hit", "params", "preemptions",
        "prompt_len", "pulled", "remote_cached", "sink", "state", "stop_reason", "stored",
        "text", "tokens",
    )

    def __init__(self, name: str, index: int, prompt: list[int], params: Params, sink: Sink,
                 now: float) -> None:
        self.id, self.index, self.params, self.sink = name, index, params, sink
        self.prompt_len = len(prompt)
        self.tokens = list(prompt)
        self.digest = text.digest(prompt)
        self._said = prompt[-1] if params.vocabulary is OWN else tokens.ASSISTANT
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []
        self.computed = self.stored = 0
        self.cached: int | None = None  # prompt tokens found in a cache, as usage reports them
        self.local_hit = 0
        self.external = 0
        self.remote_cached: int | None = None
        self.state = State.WAITING
        self.text = ""
        self._sent = 0
        self._hold = max((len(s) - 1 for s in params.stop), default=0)
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.kv_result: dict[str, Any] | None = None
        self.pulled = False
        self.preemptions = 0
        self.arrival = now
        self.first_scheduled = self.first_at = self.last_at = self.finished_at = 0.0

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    def extra(self, block: int) -> Extra:
        """vLLM's extra hash keys of a block: the adapter's on every one, the salt on the first."""
        keys: list[tuple[str, ...]] = []
        lora = self.params.lora
        if lora is not None:
            keys.append(("lora", lora.name, lora.path))
        if block == 0 and self.params.cache_salt is not None:
            keys.append(("cache_salt", self.params.cache_salt))
        return tuple(keys) or None

    def event_extra(self, block: int) -> list[str] | None:
        """The same as events carry them: untagged."""
        keys = self.extra(block)
        return None if keys is None else [k[1] for k in keys]

    def block_hashes(self, block_size: int) -> list[bytes]:
        """Hashes of all full blocks so far, extended as tokens come."""
        full = len(self.tokens) // block_size
        while len(self.hashes) < full:
            at = len(self.hashes)
            parent = self.hashes[-1] if at else NONE_HASH
            ids = self.tokens[at * block_size : (at + 1) * block_size]
            self.hashes.append(hash_block(parent, ids, self.extra(at)))
        return self.hashes

    def sample(self, now: float, max_model_len: int) -> None:
        """Appends the next token, ends the generation where it must, tells the sink."""
        if not self.first_at:
            self.first_at = now
        self.last_at = now
        params = self.params
        ended = self.output_len + 1 >= max(params.length, params.min_tokens, 1)
        said = tokens.EOS if ended else text.next_token(self.digest, self._said, params.seed)
        self._said = said
        token = params.vocabulary.reply(said)
        self.tokens.append(token)
        self.digest = text.extend(self.digest, token)
        reason: str | None = None
        if ended:
            reason = "stop"
        else:
            self.text += tokens.token_bytes(said).decode("ascii")
            reason = self._stopped()
        if reason is None and (
            self.output_len >= params.max_tokens or len(self.tokens) >= max_model_len
        ):
            reason = "length"
        upto = len(self.text) if reason is not None else max(len(self.text) - self._hold, 0)
        delta, self._sent = self.text[self._sent : upto], max(upto, self._sent)
        self.finish_reason = reason
        self.sink(self, delta, token, reason)

    def _stopped(self) -> str | None:
        if self.output_len < self.params.min_tokens:
            return None
        for stop in self.params.stop:
            at = self.text.find(stop, max(self._sent - self._hold, 0))
            if at >= 0:
                self.text, self.stop_reason = self.text[:at], stop
                return "stop"
        return None
