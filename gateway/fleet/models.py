"""`GET /v1/models` and `/v1/models/ID`, merged over the upstreams of a location.

Invariants: every field of an engine's card is kept; what was last known good is served while
engines are away; an upstream that declares its models lists those only; an alias is listed as its
model's card with `id` the alias and `root` the model.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from gateway import errors
from gateway.fleet.upstream import ControlPlane, Unreachable
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.exchange import Exchange
    from gateway.fleet.catalog import Catalog
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable, Group

Card = dict[str, Any]  # what an engine says of a model; its fields are the engine's business
Tell = Callable[[str, list[Card]], None]

FETCH_TIMEOUT_S = 5.0
NEXT_S = 0.2  # without a word from one engine, before the next is asked too
REFRESH_S = 30.0  # in the background
FRESH_S = 2.0  # younger than this is not asked for again
CARDS_MAX = 10_000  # of one engine
LIST = b"/v1/models"
_NONE: frozenset[str] = frozenset()


class Models:
    """`tell(upstream, cards)` hears what this process fetched and did not know yet."""

    def __init__(
        self, table: EngineTable, control: ControlPlane, tell: Tell | None = None
    ) -> None:
        self.catalogs: tuple[Catalog, ...] = ()
        self._tell = tell
        self._table = table
        self._control = control
        self._cards: dict[str, list[Card]] = {}
        self._adapters: dict[str, frozenset[str]] = {}
        self._asked: dict[str, float] = {}
        self._lacking: dict[str, tuple[str, ...]] = {}  # declared, but not served
        self._running: dict[str, asyncio.Task[None]] = {}
        self._background: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    # ---- the endpoint ----

    def answers(self, ctx: Context, seen: bytes) -> bool:
        """Whether this request is for the list, which the gateway makes itself."""
        if ctx.method not in (b"GET", b"HEAD") or not seen.startswith(LIST):
            return False
        return len(seen) == len(LIST) or seen[len(LIST) :].startswith(b"/")

    async def answer(self, exchange: Exchange, seen: bytes) -> None:
        """Replies with the list or one card; engines that refuse the gateway's own request get
        the client's.
        """
        ctx = exchange.ctx
        groups = ctx.plan.names(ctx).groups
        await asyncio.gather(*(self._fresh(group) for group in groups))
        if exchange.over:
            return
        cards = merged(
            (group, self._cards[group.name]) for group in groups if group.name in self._cards
        )
        name = seen[len(LIST) + 1 :].rstrip(b"/").decode("utf-8", "replace")
        if not any(group.name in self._cards for group in groups):
            if len(groups) == 1:
                ctx.group = groups[0]
                ctx.body = ctx.request.body  # without it the leg would wait for the client's
                exchange.begin()
                await exchange.finished()
            else:
                exchange.refuse(errors.EngineStarting(upstream=", ".join(g.name for g in groups)))
        elif not name:
            _json(exchange, {"object": "list", "data": list(cards.values())})
        elif name in cards:
            _json(exchange, cards[name])
        else:
            exchange.refuse(errors.ModelNotFound("model", model=name[:200]))

    # ---- what is known ----

    async def _fresh(self, group: Group) -> None:
        """Waits for the cards of an upstream where none are known; else only makes sure they get
        renewed.
        """
        known = group.name in self._cards
        if known and monotonic() - self._asked.get(group.name, 0.0) < FRESH_S:
            return
        task = self._fetch_soon(group)
        if not known:
            await asyncio.shield(task)

    def _fetch_soon(self, group: Group) -> asyncio.Task[None]:
        """One fetch per upstream at a time: those who come later join it."""
        task = self._running.get(group.name)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._fetch(group))
            self._running[group.name] = task
        return task

    async def _fetch(self, group: Group) -> None:
        self._asked[group.name] = monotonic()
        now = monotonic()
        engines = sorted(group.engines, key=lambda engine: engine.state(now) != "up")
        engines = [one for one in engines if not one.line.down and one.line.rank <= 0]
        found = await self._first(group, engines)
        if found is None:
            return
        engine, cards = found
        if group.conf.kv.aware:  # adapters may lie on some of them only
            others = [one for one in engines if one is not engine]
            cards = await self._with_others(group, others, cards)
        new = self._cards.get(group.name) != cards
        self.hear(group.name, cards)
        if new:
            self._compare(group, engine, [card["id"] for card in cards])
        if new and self._tell is not None:
            self._tell(group.name, cards)

    async def _first(
        self, group: Group, engines: list[Engine]
    ) -> tuple[Engine, list[Card]] | None:
        """The first engine that lists its models, and its list. The next is asked as soon as one
        has failed, or said nothing for NEXT_S; all of it takes FETCH_TIMEOUT_S at most.
        """
        asked: set[asyncio.Task[tuple[Engine, list[Card]] | None]] = set()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                waiting = engines[::-1]
                while waiting or asked:
                    if waiting:
                        asked.add(asyncio.create_task(self._ask(group, waiting.pop())))
                    done, asked = await asyncio.wait(
                        asked,
                        timeout=NEXT_S if waiting else None,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    for task in done:
                        if (found := task.result()) is not None:
                            return found
        except TimeoutError:
            log.debug("upstream `%s`: models: nothing in time", group.name)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return None

    async def _ask(self, group: Group, engine: Engine) -> tuple[Engine, list[Card]] | None:
        try:
            status, body = await self._control.get(group, engine, LIST.decode(), FETCH_TIMEOUT_S)
        except (Unreachable, TimeoutError) as error:
            log.debug("upstream `%s`: models of %s: %s", group.name, engine.address, error)
            return None
        cards = parse(body) if status == 200 else None
        return None if cards is None else (engine, cards)

    async def _with_others(
        self, group: Group, engines: list[Engine], cards: list[Card]
    ) -> list[Card]:
        """The cards of several engines; those who say nothing for NEXT_S are left out."""
        union = {card["id"]: card for card in cards}
        tasks = [asyncio.create_task(self._ask(group, engine)) for engine in engines]
        if tasks:
            await asyncio.wait(tasks, timeout=NEXT_S)
        for task in tasks:
            answer = task.result() if task.done() else None
            for card in answer[1] if answer is not None else ():
                union.setdefault(card["id"], card)
            task.cancel()
        return list(union.values())[:CARDS_MAX]

    def hear(self, upstream: str, cards: list[Card]) -> None:
        """Takes what an engine of an upstream listed, here or in another process."""
        group = self._table.groups.get(upstream)
        if group is not None:
            self._cards[upstream] = cards
            self._adapters[upstream] = frozenset(c["id"] for c in cards if c.get("parent"))
            for catalog in self.catalogs:
                catalog.learn(group, [card["id"] for card in cards])

    def cards(self, upstream: str) -> list[Card]:
        """What is known of an upstream; empty = nothing yet."""
        return self._cards.get(upstream, [])

    def adapters(self, upstream: str) -> frozenset[str]:
        """The LoRA adapters among them, by name."""
        return self._adapters.get(upstream, _NONE)

    def adopt(self, catalogs: tuple[Catalog, ...]) -> None:
        """The catalogs of a new configuration; what is known goes into them."""
        self.catalogs = catalogs
        for name in self._cards.keys() - self._table.groups.keys():
            del self._cards[name]
        for upstream, cards in list(self._cards.items()):
            self.hear(upstream, cards)

    def _compare(self, group: Group, engine: Engine, served: list[str]) -> None:
        """Says once, and again when it changes, that an engine lacks what its upstream declares."""
        lacking = tuple(model for model in group.conf.models if model not in served)
        if self._lacking.get(group.name, ()) != lacking:
            self._lacking[group.name] = lacking
            if lacking:
                log.warning(
                    "upstream `%s`: engine %s does not serve `%s`, it serves `%s`; hint: the names"
                    " of `model` must be those of `--served-model-name`",
                    group.name, engine.address, "`, `".join(lacking), "`, `".join(served[:8]),
                )  # fmt: skip

    def start(self) -> None:
        """Begins the background refresh."""
        self._background = asyncio.get_running_loop().create_task(self._refresh())

    def refresh(self) -> None:
        """Asks again now: the upstreams have changed."""
        self._wake.set()

    async def _refresh(self) -> None:
        while True:
            for name in self._cards.keys() - self._table.groups.keys():
                del self._cards[name]
            tasks = [self._fetch_soon(group) for group in self._table.groups.values()]
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("fetching models: %s: %s", type(result).__name__, result)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), REFRESH_S)
            self._wake.clear()

    async def close(self) -> None:
        tasks = [task for task in (self._background, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parse(body: bytes) -> list[Card] | None:
    """The cards of an engine's reply, or None where it is not a list of models."""
    try:
        data = orjson.loads(body)["data"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(data, list):
        return None
    cards = [card for card in data if isinstance(card, dict) and isinstance(card.get("id"), str)]
    return cards[:CARDS_MAX]


def merged(known: Iterable[tuple[Group, list[Card]]]) -> dict[str, Card]:
    """name → card over upstreams; the first upstream keeps a name that several have. Pure."""
    out: dict[str, Card] = {}
    for group, cards in known:
        by_id = {card["id"]: card for card in cards}
        declared = group.conf.models
        for name, card in by_id.items():
            if not declared or name in declared:
                out.setdefault(name, card)
        for alias, model in group.conf.aliases:
            if model in by_id:
                out.setdefault(alias, {**by_id[model], "id": alias, "root": model})
    return out


def _json(exchange: Exchange, value: object) -> None:
    exchange.answer(200, [errors.JSON], orjson.dumps(value))
