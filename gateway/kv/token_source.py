"""How the prompts of one upstream become token ids now, and what speaks against it.

Invariant: what the prompt phase reads are plain attributes, changed in one step of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from gateway.log_lines import NOTICE
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.conf.model_kv import TokenizerSource
    from gateway.fleet.engine import Engine
    from gateway.kv.engine_tokens import EngineTokens
    from gateway.kv.vocabulary import Vocabulary

STATES = ("loading", "local", "engine", "bytes")
AGAIN_S = 300.0  # until the files are looked for again, or an engine is doubted again
MISCOUNTS = 3  # prompts in a row of which an engine has another number of tokens: it is compared
_T = TypeVar("_T")


class TokenSource:
    """Of one upstream. What the prompt phase reads of it are plain attributes."""

    def __init__(self, conf: TokenizerSource, engine: EngineTokens, pool: ThreadPoolExecutor):
        self.conf = conf
        self.engine = engine
        self.state = "loading"
        self.reason = "loading"  # a word of `routed.REASONS`: why prompts are not local
        self.why = ""  # for people
        self.verdict = ""  # of the comparison with an engine: "" = none yet, agrees, differs
        self.folder = ""
        self.vocabulary: Vocabulary | None = None  # only while it is in use
        self.block_sizes: tuple[int, ...] = ()  # of the engines, so that hashes are made at once
        self.since = monotonic()
        self.doubted: Engine | None = None  # whom to compare with again
        self.doubt = asyncio.Event()
        self._certain_until = 0.0
        self._miscounts: Counter[str] = Counter()  # by engine, those with some
        self._pool = pool

    @property
    def asks(self) -> bool:
        """Whether every prompt is asked of an engine."""
        return self.state == "engine"

    @property
    def may_ask(self) -> bool:
        """Whether an engine may be asked for a prompt that cannot be read here."""
        return self.conf.kind != "off"

    def counted(self, engine: Engine, here: int, there: int) -> None:
        """How many tokens a prompt has that was read here, and by the engine that got it."""
        if here == there:
            self._miscounts.pop(engine.address, None)
            return
        self._miscounts[engine.address] += 1
        if self._miscounts[engine.address] >= MISCOUNTS:
            self.suspect(engine)

    def suspect(self, engine: Engine) -> None:
        """What an engine says fits ill with the ids that are made here."""
        if monotonic() < self._certain_until:
            return
        self._certain_until = monotonic() + AGAIN_S
        self._miscounts.clear()
        self.doubted = engine
        self.doubt.set()

    async def in_thread(self, call: Callable[..., _T], *args: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

    def become(self, upstream: str, state: str, reason: str, why: str) -> None:
        """Another state; logged where it changes."""
        if (self.state, self.why) == (state, why):
            return
        self.state, self.reason, self.why = state, reason, why
        level = "approximate" if state == "bytes" else "exact"
        how = {"local": "here", "engine": "by the engines", "bytes": "not at all"}.get(state)
        if how is not None:
            log.log(NOTICE, "upstream `%s`: prompts are tokenised %s (%s): %s",
                    upstream, how, level, why)  # fmt: skip
