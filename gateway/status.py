"""What `/kvgate/status` and `/kvgate/ready` say: plain data, read from the live tables.

Ready means: not shutting down, the first round of health checks is over, and at least one
upstream has an engine that may be asked. One upstream of several being away does not take the
whole gateway out of a load balancer: its requests get a 503 of their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway import __version__

if TYPE_CHECKING:
    from gateway.admit import Gatehouse
    from gateway.engines import Engine, EngineTable
    from gateway.health import Health
    from gateway.stats import Statistics

Document = dict[str, Any]  # JSON


@dataclass(slots=True)
class Life:
    """Where this worker is in its life. `generation` counts configurations."""

    generation: int = 1
    draining: bool = False
    started: float = field(default_factory=monotonic)


class Status:
    def __init__(
        self,
        table: EngineTable,
        health: Health,
        gatehouse: Gatehouse,
        stats: Statistics,
        listeners: tuple[str, ...],
        life: Life,
    ) -> None:
        self.life = life
        self._table = table
        self._health = health
        self._gatehouse = gatehouse
        self._stats = stats
        self._listeners = listeners

    def unready(self, now: float) -> str:
        """Why no traffic should come here; "" when it should."""
        if self.life.draining:
            return "shutting down"
        if not self._health.settled:
            return "engines have not been checked yet"
        groups = self._table.groups.values()
        if groups and not any(e.state(now) == "up" for g in groups for e in g.engines):
            return "no engine of any upstream is up"
        return ""

    def document(self, now: float) -> Document:
        reason = self.unready(now)
        return {
            "version": __version__,
            "pid": os.getpid(),
            "generation": self.life.generation,
            "uptime_s": round(now - self.life.started, 3),
            "ready": not reason,
            "reason": reason,
            "draining": self.life.draining,
            "requests_active": self._gatehouse.active,
            "listeners": list(self._listeners),
            "upstreams": {
                group.name: {
                    "models": list(group.conf.models),
                    "aliases": dict(group.conf.aliases),
                    "balance": group.conf.balance.method,
                    "engines": [self._engine(engine, now) for engine in group.engines],
                }
                for group in self._table.groups.values()
            },
            "counters": {
                "refused": _present(self._stats.counts("refused")),
                "retries": _present(self._stats.counts("retry")),
                "replays": self._stats.count("unsent_reuse"),
                "stripped": self._stats.count("stripped"),
            },
        }

    def _engine(self, engine: Engine, now: float) -> Document:
        pools = [pool for pool in engine.pools if pool is not None]
        return {
            "address": engine.address,
            "state": engine.state(now),
            "why": engine.why,
            "in_flight": self._table.ledger.in_flight(engine.slot),
            "weight": engine.line.weight,
            "backup": engine.line.backup,
            "role": engine.line.role,
            "fails": engine.marks.fails,
            "pool": {
                "idle": sum(pool.idle for pool in pools),
                "active": sum(pool.active for pool in pools),
                "opened": sum(pool.opened for pool in pools),
                "reused": sum(pool.reused for pool in pools),
                "connect_errors": sum(pool.connect_errors for pool in pools),
            },
        }


def _present(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
