"""Active health checks: one task per server whose upstream says `health_check`; its ranks share it.

Invariants: tasks follow the engine table (one for each server there, none for one that left); a
check reads and writes nothing but the engine's health, in-flight counts least of all; the first
check decides by itself, later ones by `fails` and `passes` in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import uniform
from time import monotonic
from typing import TYPE_CHECKING

from gateway.fleet.upstream import ControlPlane, Unreachable

if TYPE_CHECKING:
    from gateway.conf.model import HealthCheck
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable, Group

Key = tuple[str, str]
Tell = Callable[["Group", "Engine", bool, str], None]


@dataclass(slots=True)
class Streak:
    """Results in a row of one engine. Pure: `add` says what they amount to."""

    fails: int = 0
    passes: int = 0
    known: bool = False

    def add(self, passed: bool, check: HealthCheck) -> bool | None:
        """True: healthy now, False: unhealthy now, None: nothing new can be said."""
        first, self.known = not self.known, True
        if passed:
            self.fails, self.passes = 0, self.passes + 1
            return True if first or self.passes >= check.passes else None
        self.passes, self.fails = 0, self.fails + 1
        return False if first or self.fails >= check.fails else None


class Health:
    """`tell(group, engine, healthy, why)` hears every verdict: the monitor passes it on."""

    def __init__(
        self, table: EngineTable, control: ControlPlane, tell: Tell | None = None
    ) -> None:
        self._table = table
        self._control = control
        self._tell = tell
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._streaks: dict[Key, Streak] = {}

    def sync(self) -> None:
        """Starts and ends checks after a change of the engine table."""
        wanted = {
            (group.name, engine.line.server)
            for group in self._table.groups.values()
            if group.conf.health_check is not None
            for engine in group.engines
            if not engine.line.down
        }
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
            self._streaks.pop(key, None)
        for key in wanted - self._tasks.keys():
            self._streaks[key] = Streak()
            self._tasks[key] = asyncio.get_running_loop().create_task(self._watch(key))

    @property
    def settled(self) -> bool:
        """Whether every engine that is checked has been checked once."""
        return all(streak.known for streak in self._streaks.values())

    async def _watch(self, key: Key) -> None:
        while True:
            found = self._find(key)
            if found is None:
                return
            group, engines, check = found
            try:
                passed, why = await self._probe(group, engines[0], check)
            except (
                Exception
            ) as error:  # outermost loop of the task: a check must not end the checks
                passed, why = False, f"{type(error).__name__}: {error}"
            verdict = self._streaks[key].add(passed, check)
            if verdict is not None:
                self._judge(group, engines, verdict, why)
            # A little jitter keeps the checks of many gateways and engines apart.
            await asyncio.sleep(check.interval_s * uniform(0.9, 1.1))

    def _judge(self, group: Group, engines: list[Engine], healthy: bool, why: str) -> None:
        for engine in engines:
            group.set_health(engine, healthy, why, monotonic())
            if self._tell is not None:
                self._tell(group, engine, healthy, why)

    def _find(self, key: Key) -> tuple[Group, list[Engine], HealthCheck] | None:
        group = self._table.groups.get(key[0])
        if group is None or group.conf.health_check is None:
            return None
        engines = [e for e in group.engines if e.line.server == key[1] and not e.line.down]
        return (group, engines, group.conf.health_check) if engines else None

    async def _probe(self, group: Group, engine: Engine, check: HealthCheck) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(check.timeout_s):
                status, _ = await self._control.get(group, engine, check.uri, check.timeout_s)
        except Unreachable as error:
            return False, str(error)
        except TimeoutError:
            return False, f"no reply within {check.timeout_s:g}s"
        if 200 <= status < 400:
            return True, ""
        hint = " (hint: set `api_key` in the upstream)" if status in (401, 403) else ""
        return False, f"`{check.uri}` answered {status}{hint}"

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
