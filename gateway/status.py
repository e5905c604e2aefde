"""What `/kvgate/status` and `/kvgate/ready` say: plain data, read from the live tables.

Ready means: not shutting down, the first round of health checks is over, and at least one
upstream has an engine that may be asked. One upstream of several being away does not take the
whole gateway out of a load balancer: its requests get a 503 of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.process.orders import State

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable
    from gateway.kv.caches import Caches
    from gateway.kv.tokens import TokenSources
    from gateway.stats import Statistics

Document = dict[str, Any]  # JSON


@dataclass(slots=True)
class Life:
    """Where this worker is in its life, and what it was told of the whole gateway's."""

    draining: bool = False
    started: float = field(default_factory=monotonic)
    listeners: tuple[str, ...] = ()
    state: State = field(default_factory=State)


class Status:
    """`say` puts this worker's own numbers into the shared ones, which are what is shown."""

    def __init__(
        self,
        table: EngineTable,
        stats: Statistics,
        life: Life,
        say: Callable[[], None],
        tokens: TokenSources,
        caches: Caches,
    ) -> None:
        self.life = life
        self._caches = caches
        self._tokens = tokens
        self._table = table
        self._stats = stats
        self._say = say

    def unready(self, now: float) -> str:
        """Why no traffic should come here; "" when it should."""
        if self.life.draining:
            return "shutting down"
        if not self._table.settled:
            return "engines have not been checked yet"
        groups = self._table.groups.values()
        if groups and not any(e.state(now) == "up" for g in groups for e in g.engines):
            return "no engine of any upstream is up"
        return ""

    def document(self, now: float) -> Document:
        self._say()
        reason = self.unready(now)
        state = self.life.state
        return {
            "version": __version__,
            "pid": os.getpid(),
            "master": state.master,
            "generation": state.generation,
            "loaded": state.loaded,
            "reload_error": state.reload_error,
            "reload_failed": state.reload_failed,
            "processes": [asdict(process) for process in state.processes],
            "uptime_s": round(now - self.life.started, 3),
            "ready": not reason,
            "reason": reason,
            "draining": self.life.draining,
            "requests_active": self._stats.count("active"),
            "listeners": list(self.life.listeners),
            "upstreams": self._upstreams(),
            "counters": {
                "refused": _present(self._stats.counts("refused")),
                "retries": _present(self._stats.counts("retry")),
                "replays": self._stats.count("unsent_reuse"),
                "stripped": self._stats.count("stripped"),
            },
        }

    def upstreams(self) -> Document:
        """What `/kvgate/upstreams` says."""
        self._say()
        return {"generation": self.life.state.generation, "upstreams": self._upstreams()}

    def _upstreams(self) -> Document:
        return {
            group.name: {
                "models": list(group.conf.models),
                "aliases": dict(group.conf.aliases),
                "balance": group.conf.balance.method,
                "tokenizer": self._tokenizer(group.name),
                "engines": [self._engine(engine) for engine in group.engines],
            }
            for group in self._table.groups.values()
        }

    def _tokenizer(self, upstream: str) -> Document | None:
        """Where prompts of a kv_aware upstream are read, in the worker that answers."""
        source = self._tokens.by_upstream.get(upstream)
        if source is None:
            return None
        vocabulary = source.vocabulary
        return {
            "state": source.state,
            "why": source.why,
            "compared": source.verdict,
            "folder": source.folder,
            "kind": "" if vocabulary is None else vocabulary.tokenizer.kind,
            "cache": {} if vocabulary is None else vocabulary.tokenizer.stats(),
        }

    def _engine(self, engine: Engine) -> Document:
        """Sums over workers: the same whichever answers, at most a second old for the others."""
        ledger = self._table.ledger
        (idle, active, fails, benched), (opened, reused, failed) = ledger.core.said(engine.slot)
        load = ledger.core.load(engine.slot)
        return {
            "address": engine.address,
            "state": shared_state(engine, benched),
            "why": engine.why,
            "in_flight": ledger.in_flight(engine.slot),
            "weight": engine.line.weight,
            "backup": engine.line.backup,
            "role": engine.role,
            "prefills_pending": engine.pending,
            "load": {
                "prefill_tokens": load.prefill_tokens,
                "decode_blocks": load.decode_blocks,
                "dispatched": load.dispatched,
            },
            "kv": self._caches.status(engine),
            "fails": fails,
            "pool": {
                "idle": idle,
                "active": active,
                "opened": opened,
                "reused": reused,
                "connect_errors": failed,
            },
        }


def shared_state(engine: Engine, benched: int) -> str:
    """As `Engine.state`, over all workers: benched where any worker benches it."""
    state = engine.state(math.inf)
    return "benched" if state == "up" and benched else state


def _present(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
