"""Asks the servers of kv_aware upstreams what they are: see `facts`.

One process asks (the monitor, or a gateway that is alone) and tells all. Invariants: what has been
learnt stays until a server says otherwise; nothing here is on the path of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import uniform
from typing import TYPE_CHECKING

from gateway.fleet.models import CARDS_MAX, LIST, parse
from gateway.fleet.upstream import ControlPlane, Unreachable
from gateway.kv.facts import Facts, capacity_of, context_of
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable, Group

ASK_S = 60.0
RETRY_S = 2.0  # where an engine did not answer
TIMEOUT_S = 5.0

Tell = Callable[[str, str, Facts], None]
Key = tuple[str, str]  # upstream, address of the server


class Inquiry:
    """`tell(upstream, server, facts)` hears what is new."""

    def __init__(self, table: EngineTable, control: ControlPlane, tell: Tell) -> None:
        self._table = table
        self._control = control
        self._tell = tell
        self._known: dict[Key, Facts] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def sync(self) -> None:
        """Follows the engine table: one task for each server of a kv_aware upstream."""
        wanted = {
            (group.name, engine.line.server)
            for group in self._table.groups.values()
            if group.conf.kv.aware
            for engine in group.engines
            if not engine.line.down
        }
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
            self._known.pop(key, None)
        for key in wanted - self._tasks.keys():
            self._tasks[key] = asyncio.get_running_loop().create_task(self._watch(key))

    async def _watch(self, key: Key) -> None:
        while True:
            place = self._place(key)
            if place is None:
                return
            pause = RETRY_S
            try:
                facts = await self._ask(*place)
            except (Unreachable, TimeoutError) as error:
                log.debug("upstream `%s`: facts of %s: %s", *key, error)
                facts = None
            except Exception:  # outermost loop of the task: asking must not end
                log.exception("upstream `%s`: fault while asking %s what it is", *key)
                facts = None
            if facts is not None:
                pause = ASK_S
                if self._known.get(key) != facts:
                    self._known[key] = facts
                    self._tell(*key, facts)
            await asyncio.sleep(pause * uniform(0.9, 1.1))

    def _place(self, key: Key) -> tuple[Group, Engine] | None:
        group = self._table.groups.get(key[0])
        engines = () if group is None else group.engines
        found = next((engine for engine in engines if engine.line.server == key[1]), None)
        return None if group is None or found is None else (group, found)

    async def _ask(self, group: Group, engine: Engine) -> Facts | None:
        """None where it does not list its models. Raises Unreachable, TimeoutError."""
        async with asyncio.timeout(2 * TIMEOUT_S):
            status, body = await self._control.get(group, engine, LIST.decode(), TIMEOUT_S)
            cards = parse(body) if status == 200 else None
            if cards is None:
                return None
            capacity = group.conf.kv.capacity_tokens
            if not capacity:
                status, page = await self._control.get(group, engine, "/metrics", TIMEOUT_S)
                capacity = capacity_of(page) if status == 200 else 0
        names = frozenset(card["id"] for card in cards[:CARDS_MAX])
        return Facts(names, context_of(cards), capacity)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def hear(table: EngineTable, upstream: str, server: str, facts: Facts) -> None:
    """Takes what a server said of itself, here or in another process."""
    group = table.groups.get(upstream)
    if group is None:
        return
    teams = set()
    for engine in group.engines:
        if engine.line.server == server:
            engine.models = facts.models
            engine.context_tokens = facts.context_tokens
            engine.capacity_tokens = facts.capacity_tokens
            teams.add(engine.team)
    for team in teams:
        team.seat(table.ledger, table.index)
