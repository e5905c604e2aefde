"""Where the token ids of each upstream come from: loaded, compared with an engine's, or asked for.

    loading ──→ local     the model's files are here and agree with an engine's /tokenize
       │  └───→ engine    they are not here, differ, or `tokenizer remote`: engines are asked
       └──────→ bytes     no engine tokenises, or `tokenizer off`

An engine that counts other numbers of tokens than are made here, or finds other prefixes than its
events tell of, is compared once more: another version of the model may have come up at its address.

Invariants: an upstream works from the first request on, whatever its state; a change of state is
logged once, with its reason; a tokenizer that disagrees with an engine is never used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from gateway.conf import hub
from gateway.kv import probes
from gateway.kv.engine_tokens import EngineTokens, NoIds, Question
from gateway.kv.token_source import AGAIN_S, TokenSource
from gateway.kv.vocabulary import Vocabulary
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.conf.model_kv import TokenizerSource
    from gateway.fleet.engines import EngineTable, Group
    from gateway.fleet.models import Models

THREADS = 2  # per worker: large prompts are read there, and tokenizers loaded
CARDS_S = 5.0  # that engines have to say what they serve, before they are asked for ids
RETRY_S = 2.0  # until the next try where engines did not answer


class TokenSources:
    """Every kv_aware upstream's, over reloads the same where its directive stays the same."""

    def __init__(
        self,
        table: EngineTable,
        engine: EngineTokens,
        models: Models,
        environment: Mapping[str, str],
    ) -> None:
        self.by_upstream: dict[str, TokenSource] = {}
        # Hears of every step of an upstream's.
        self.changed: Callable[[str, TokenSource], None] = lambda upstream, source: None
        self._table = table
        self._engine = engine
        self._models = models
        self._environment = environment
        self._pool = ThreadPoolExecutor(THREADS, "prompt")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False

    def sync(self) -> None:
        """Follows the engine table: one source for each upstream that is kv_aware."""
        aware = [group.conf for group in self._table.groups.values() if group.conf.kv.aware]
        wanted = {conf.name: conf.kv.tokenizer for conf in aware}
        for name in list(self.by_upstream):
            if wanted.get(name) != self.by_upstream[name].conf:
                del self.by_upstream[name]
                task = self._tasks.pop(name, None)
                if task is not None:
                    task.cancel()
        for name, conf in wanted.items():
            if name not in self.by_upstream:
                self.by_upstream[name] = TokenSource(conf, self._engine, self._pool)
                if self._running:
                    self._begin(name)
        self._engine.forget(set(wanted))

    def start(self) -> None:
        """Begins to load; needs a running loop."""
        self._running = True
        for name in self.by_upstream:
            self._begin(name)

    def _begin(self, name: str) -> None:
        source = self.by_upstream[name]
        self._tasks[name] = asyncio.get_running_loop().create_task(self._follow(name, source))

    async def close(self) -> None:
        self._running = False
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- one upstream ----

    async def _follow(self, name: str, source: TokenSource) -> None:
        """For as long as the upstream has this source."""
        while True:
            try:
                wait_s = await self._step(name, source)
            except Exception:
                log.exception("upstream `%s`: fault while its tokenizer was loaded", name)
                source.become(name, "engine", "no_tokenizer", "a fault, see the error log")
                wait_s = AGAIN_S
            self.changed(name, source)
            if wait_s is None:
                await source.doubt.wait()
                source.doubt.clear()
            else:
                await asyncio.sleep(wait_s)

    async def _step(self, name: str, source: TokenSource) -> float | None:
        """Brings a source on; how long to wait for the next step, None = it is done."""
        group = self._table.groups[name]
        if source.doubted is not None and source.vocabulary is not None:
            return await self._compare_again(group, source)
        if source.conf.kind == "off":
            source.become(name, "bytes", "off", "`tokenizer off`")
            return None
        if source.conf.kind == "remote":
            return await self._by_engines(group, source, "`tokenizer remote`")
        path, where = self._path(group, source.conf)
        if not path:
            if not where:
                if monotonic() > source.since + CARDS_S:
                    await self._by_engines(group, source, "no engine says what it serves")
                return RETRY_S / 4
            return await self._by_engines(group, source, where)
        try:
            loaded = await source.in_thread(Vocabulary.load, path, source.conf.chat_template)
        except (ValueError, OSError) as error:
            return await self._by_engines(group, source, str(error), last=True)
        source.folder = loaded.folder
        return await self._compare(group, source, loaded)

    def _path(self, group: Group, conf: TokenizerSource) -> tuple[str, str]:
        """(the tokenizer.json, "") or ("", why there is none; "" = not known yet)."""
        if conf.kind == "files":
            return conf.path, ""
        names = [conf.name] if conf.kind == "name" else self._roots(group)
        for name in names:
            folder = hub.folder(name, self._environment)
            if folder:
                return os.path.join(folder, hub.TOKENIZER), ""
        if not names:
            return "", ""
        return "", f"the files of `{names[0]}` are not on this machine"

    def _roots(self, group: Group) -> list[str]:
        """What the engines call the root of their model, and its name."""
        cards = [c for c in self._models.cards(group.name) if not c.get("parent")]
        named = [c for c in cards if c["id"] in group.conf.models] or cards
        found = [named[0].get("root"), named[0]["id"]] if named else []
        return [text for text in dict.fromkeys(found) if isinstance(text, str) and text]

    async def _compare(self, group: Group, source: TokenSource, loaded: Vocabulary) -> float | None:
        """Takes what was loaded into use, unless an engine's ids differ."""
        model = self._model(group)
        if model is None:
            source.why = "no engine has said yet what it serves"
            return RETRY_S / 4

        async def ask(question: Question) -> list[int]:
            return (await self._engine.ids(group.latest(), question)).ids

        try:
            verdict = await probes.compare(loaded, model, ask)
        except NoIds as error:
            if error.reason == "unreachable":
                source.why = "no engine has answered the comparison yet"
                return RETRY_S
            verdict = probes.Verdict(None, "no engine offers /tokenize")
        if verdict.agrees is False:
            source.verdict = "differs"
            why = f"{loaded.folder} is not what the engines use: {verdict.why}"
            return await self._by_engines(group, source, why, last=True)
        source.verdict = "agrees" if verdict.agrees else "not compared"
        loaded.tokenizer.warm()  # this thread's tables: not at the first request's expense
        source.vocabulary = loaded
        source.become(group.name, "local", "", f"{loaded.folder}, {verdict.why}")
        return None

    async def _compare_again(self, group: Group, source: TokenSource) -> float | None:
        """An engine is suspect: what was taken into use goes if a probe differs."""
        loaded, engine = source.vocabulary, source.doubted
        assert loaded is not None and engine is not None

        async def ask(question: Question) -> list[int]:
            return (await self._engine.of(group.latest(), engine, question)).ids

        try:
            verdict = await probes.compare(loaded, self._model(group) or "", ask)
        except NoIds as error:
            if error.reason == "unreachable" and engine in group.latest().engines:
                return RETRY_S
            verdict = probes.Verdict(None, "it offers no /tokenize to compare with")
        source.doubted = None
        if verdict.agrees is not False:
            log.warning(
                "upstream `%s`: what engine %s says of prompts is not what is known here; %s",
                group.name, engine.address, verdict.why,
            )  # fmt: skip
            return None
        source.verdict, source.vocabulary = "differs", None
        why = f"{loaded.folder} is not what engine {engine.address} uses: {verdict.why}"
        return await self._by_engines(group, source, why, last=True)

    async def _by_engines(
        self, group: Group, source: TokenSource, why: str, last: bool = False
    ) -> float | None:
        """Engines tokenise from now on, where they offer it. `last`: looking at the files again
        would change nothing.
        """
        model = self._model(group)
        body = probes.first(model or "")
        try:
            await self._engine.ids(group.latest(), Question(*body))
        except NoIds as error:
            if error.reason == "no_tokenizer":
                off = f"exact routing is off: no engine offers /render or /tokenize; {why}"
                source.become(group.name, "bytes", "no_tokenizer", off)
                return AGAIN_S
            if error.reason == "unreachable":
                source.become(group.name, "engine", "no_tokenizer", why)
                return RETRY_S
        source.become(group.name, "engine", "no_tokenizer", why)
        remote = source.conf.kind == "remote"
        return None if last or (remote and model is not None) else AGAIN_S

    def _model(self, group: Group) -> str | None:
        """A name that the engines serve the model by."""
        if group.conf.models:
            return group.conf.models[0]
        cards = [card for card in self._models.cards(group.name) if not card.get("parent")]
        return str(cards[0]["id"]) if cards else None
