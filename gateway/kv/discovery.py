"""Asks vLLM servers where they publish KV events: one task per server whose line does not say it.

Invariants: tasks follow the engine table; a server is asked again now and then, and at once when
someone finds its publisher gone; what has been learnt stays until it says otherwise, so a server
that is away for a moment loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from random import uniform
from typing import TYPE_CHECKING

from engines.base import EVENT_SOURCES
from gateway.fleet.upstream import ControlPlane, Unreachable
from gateway.kv.sources import Found, Source, candidates, read, split

if TYPE_CHECKING:
    from engines.vllm.probe import EventSource
    from gateway.conf.model import EngineLine
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable, Group

ASK_S = 30.0  # between two askings of a server that has answered
RETRY_S = 1.0  # after the first failure; doubles up to ASK_S
TIMEOUT_S = 5.0
CONNECT_S = 1.0  # to find out which of two addresses can be reached
AGAIN_S = 1.0  # askings on demand are that far apart

Server = tuple[str, str]  # upstream, address without rank
Tell = Callable[[str, str, Found], None]


class Discovery:
    """`tell(upstream, server, found)` hears what is new."""

    def __init__(self, table: EngineTable, control: ControlPlane, tell: Tell) -> None:
        self._table = table
        self._control = control
        self._tell = tell
        self._tasks: dict[Server, asyncio.Task[None]] = {}
        self._wake: dict[Server, asyncio.Event] = {}
        self._published: dict[Server, tuple[EventSource, ...]] = {}
        self._doubts: set[Server] = set()
        self.found: dict[Server, Found] = {}

    def sync(self) -> None:
        """Starts and ends askings after a change of the engine table."""
        wanted = {
            (group.name, engine.line.server)
            for group in self._table.groups.values()
            if group.conf.kv.listens
            for engine in group.engines
            if not engine.line.events and not engine.line.down
        }
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
            del self._wake[key]
            self._published.pop(key, None)
            self.found.pop(key, None)
        for key in wanted - self._tasks.keys():
            self._wake[key] = asyncio.Event()
            self._tasks[key] = asyncio.get_running_loop().create_task(self._watch(key))

    def again(self, upstream: str, server: str) -> None:
        """Someone cannot reach its publisher, or it has restarted: its ports may be others."""
        wake = self._wake.get((upstream, server))
        if wake is not None:
            self._doubts.add((upstream, server))
            wake.set()

    async def _watch(self, key: Server) -> None:
        pause = RETRY_S
        while True:
            place = self._place(key)
            if place is None:
                return
            try:
                found = await self._ask(*place)
            except Exception as error:  # outermost loop of the task: asking must not end
                found = Found(why=f"{type(error).__name__}: {error}", final=False)
            self._learn(key, found)
            pause = ASK_S if found.final else min(2 * pause, ASK_S)
            await self._sleep(key, pause)

    async def _sleep(self, key: Server, pause: float) -> None:
        wake = self._wake[key]
        await asyncio.sleep(AGAIN_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(wake.wait(), (pause - AGAIN_S) * uniform(0.9, 1.1))
        wake.clear()

    def _learn(self, key: Server, found: Found) -> None:
        known = self.found.get(key)
        if known is not None and known.sources and not found.final:
            return
        if known != found:
            self.found[key] = found
            self._tell(*key, found)

    def _place(self, key: Server) -> tuple[Group, Engine] | None:
        group = self._table.groups.get(key[0])
        if group is None:
            return None
        for engine in group.engines:
            if engine.line.server == key[1]:
                return group, engine
        return None

    async def _ask(self, group: Group, engine: Engine) -> Found:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await self._control.get(group, engine, EVENT_SOURCES, TIMEOUT_S)
        except Unreachable as error:
            return Found(why=f"asking where it publishes: {error}", final=False)
        except TimeoutError:
            why = f"asked where it publishes, it said nothing for {TIMEOUT_S:g}s"
            return Found(why=why, final=False)
        published, found = read(status, body)
        if not published:
            return found
        key = group.name, engine.line.server
        known = self.found.get(key)
        same = known is not None and self._published.get(key) == published
        if same and known is not None and key not in self._doubts:
            return known  # addresses that work are not exchanged for a moment's trouble
        made = await asyncio.gather(*(_reached(one, engine.line) for one in published))
        for _, why in made:
            if why:
                return Found(why=why, final=False)
        self._published[key] = published
        self._doubts.discard(key)
        return Found(tuple(source for source, _ in made if source is not None))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _reached(published: EventSource, line: EngineLine) -> tuple[Source | None, str]:
    """What to connect to for one rank, or why there is nothing."""
    endpoint, why = await _first(published.endpoint, line)
    if why:
        return None, why
    replay = ""
    if published.replay:
        replay, _ = await _first(published.replay, line)
    return Source(endpoint, replay, published.topic), ""


async def _first(endpoint: str, line: EngineLine) -> tuple[str, str]:
    """The first candidate that takes a connection; the last one is taken untried."""
    tried, why = candidates(endpoint, line)
    if why:
        return "", why
    if endpoint.startswith("ipc://") and not os.path.exists(endpoint.removeprefix("ipc://")):
        return "", f"it publishes at {endpoint}, which is not there"
    for one in tried[:-1]:
        if await _takes(*split(one)):
            return one, ""
    return tried[-1], ""


async def _takes(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
