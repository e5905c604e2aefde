"""The monitor process: asks engines how they are, what they serve and where they publish KV events,
for all workers.

Invariants: it is the one writer of the health words in shared memory; workers go on with what they
know while it is away; it serves nothing and has no listening socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from time import monotonic
from typing import Any

import uvloop

from gateway.disagg.elastic import Elastic
from gateway.fleet.engine import Engine
from gateway.fleet.engines import EngineTable, Group
from gateway.fleet.health import Health
from gateway.fleet.ledger import ILL, WELL
from gateway.fleet.models import Models
from gateway.fleet.upstream import ControlPlane, tls_context
from gateway.kv.discovery import Discovery
from gateway.kv.facts import Facts
from gateway.kv.inquiry import Inquiry
from gateway.kv.sources import Found
from gateway.logs import log, open_error_log
from gateway.process.identity import become
from gateway.process.link import Link
from gateway.process.orders import Apply, Ask, Leave, Reopen
from gateway.process.worker import FOR_THE_LOOP, Post
from gateway.site import fronts

BEAT_S = 0.5


class Monitor:
    def __init__(self, post: Post) -> None:
        self._config = post.config
        self._memory = post.memory
        self._core = post.memory.ledger.core
        tls = tls_context()
        self._table = EngineTable(post.memory.ledger, tls)
        self._control = ControlPlane(tls)
        self._health = Health(self._table, self._control, self._tell_health)
        self._discovery = Discovery(self._table, self._control, self._tell_sources)
        self._elastic = Elastic(self._table, post.memory.disagg)
        self._inquiry = Inquiry(self._table, self._control, self._tell_facts)
        self._models = Models(self._table, self._control, self._tell_models)
        self._link = Link(post.channel, self._obey, self._end)
        self._over = asyncio.Event()

    def _take(self) -> None:
        conf = self._config
        self._table.apply(conf.upstreams.values(), fronts.schemes(conf), monotonic())
        try:
            self._control.adopt(fronts.ways(conf))
        except OSError as error:
            log.error("checks go on with the former certificates: %s", error)
        self._health.sync()
        self._discovery.sync()
        self._inquiry.sync()
        self._elastic.sync()

    async def live(self) -> None:
        """Until a signal, or the master's end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGUSR1, self._reopen)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_LOOP)
        self._link.start()
        self._take()
        self._models.start()
        self._link.tell({"ready": True})
        while not self._over.is_set():
            self._core.beat(monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), BEAT_S)
        await self._health.close()
        await self._discovery.close()
        await self._inquiry.close()
        await self._models.close()
        await self._elastic.close()
        await self._control.close()

    def _end(self) -> None:
        self._over.set()

    def _obey(self, order: Any) -> None:
        match order:
            case Apply():
                self._config = order.config
                self._memory.ledger.handles = dict(order.engines)
                open_error_log(order.config.error_log, order.config.error_level)
                self._take()
                self._models.refresh()
                self._link.tell({"applied": order.generation})
            case Ask():
                self._discovery.again(order.upstream, order.server)
            case Reopen():
                self._reopen()
            case Leave():
                self._end()

    def _reopen(self) -> None:
        open_error_log(self._config.error_log, self._config.error_level)

    def _tell_health(self, group: Group, engine: Engine, healthy: bool, why: str) -> None:
        self._core.set_health(engine.slot, WELL if healthy else ILL)
        self._link.tell({"health": {"upstream": group.name, "address": engine.address, "why": why}})

    def _tell_sources(self, upstream: str, server: str, found: Found) -> None:
        report = {"upstream": upstream, "server": server, "found": found.as_json()}
        self._link.tell({"sources": report})

    def _tell_facts(self, upstream: str, server: str, facts: Facts) -> None:
        report = {"upstream": upstream, "server": server, "facts": facts.as_json()}
        self._link.tell({"facts": report})

    def _tell_models(self, upstream: str, cards: list[dict[str, Any]]) -> None:
        self._link.tell({"models": {"upstream": upstream, "cards": cards}})


def run(post: Post) -> int:
    """The whole life of the monitor; its exit status."""
    post.memory.ledger.core.bind(post.slot)
    post.memory.disagg.bind(post.slot)  # the moves of elastic roles
    become(post.config)

    async def live() -> None:
        await Monitor(post).live()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(live())
    except Exception:  # the outermost loop: said before it ends, and it is started again
        log.exception("the monitor failed")
        return 1
    return 0
