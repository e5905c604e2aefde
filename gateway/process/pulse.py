"""What a worker says and hears through shared memory, on timers: its heartbeat, its numbers, the
health of engines, how late its loop is.

Invariants: nothing here waits; numbers are a second old at most, and those of the worker that
answers are fresh, since it says them right before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from gateway.disagg import roles
from gateway.logs import Sink
from gateway.trace_log import TraceSink

if TYPE_CHECKING:
    from gateway.admit import Gatehouse
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable
    from gateway.fleet.responses import ResponseMap
    from gateway.logs import Writer
    from gateway.process.memory import Memory

LOOK_S = 0.05  # how often health is looked at
SAY_S = 1.0  # how often numbers are said


class Pulse:
    def __init__(
        self,
        memory: Memory,
        table: EngineTable,
        gatehouse: Gatehouse,
        writer: Writer,
        responses: ResponseMap,
    ) -> None:
        self._stats = memory.stats
        self._ledger = memory.ledger.core
        self._table = table
        self._gatehouse = gatehouse
        self._writer = writer
        self._responses = responses
        self._dropped: dict[str, int] = {}  # as it was said last
        self._seen = -1  # version of health that was taken
        self._said_at = 0.0
        self._delays = memory.delays
        self._due = 0.0  # of the next turn; 0 = the first
        self._timer: asyncio.TimerHandle | None = None
        self.turns: list[Callable[[], None]] = []  # called at every turn as well

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._turn()

    def _turn(self) -> None:
        now = monotonic()
        if self._due:
            self._delays.observe(now - self._due)
        self.look(now)
        self._ledger.beat(now)
        for turn in self.turns:
            turn()
        if now - self._said_at >= SAY_S:
            self.say()
        # From now on, not from when this turn began: the loop counts from here, too.
        self._due = monotonic() + LOOK_S
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._turn)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self, now: float, again: bool = False) -> None:
        """Takes over what the monitor found, where that has changed or `again`."""
        version = self._ledger.health_version()
        if version == self._seen and not again:
            return
        self._seen = version
        for group in self._table.groups.values():
            roles.hear(self._table.ledger, group.engines, now)
            if group.conf.health_check is None:
                continue
            for engine in group.engines:
                group.hear_health(engine, self._ledger.health(engine.slot), now)

    def say(self) -> None:
        """Puts this worker's numbers where every worker can read them."""
        self._said_at = now = monotonic()
        for group in self._table.groups.values():
            for engine in group.engines:
                self._say_engine(engine, now)
        self._stats.say("active", self._gatehouse.active)
        self._stats.say("responses", len(self._responses))
        for name, kind in (("log_dropped", Sink), ("record_dropped", TraceSink)):
            dropped = self._writer.dropped(kind)
            self._stats.add(name, dropped - self._dropped.get(name, 0))
            self._dropped[name] = dropped

    def _say_engine(self, engine: Engine, now: float) -> None:
        counts, former = engine.counts(), engine.opened
        engine.opened = counts
        benched = int(engine.marks.benched and now <= engine.marks.until)
        self._ledger.say(
            engine.slot,
            (*engine.connections(), engine.marks.fails, benched),
            (counts[0] - former[0], counts[1] - former[1], counts[2] - former[2]),
        )
