"""A worker process: serves on the sockets it was lent, and does what the master orders.

Invariants: it never opens a listening socket or changes its own configuration; when the master is
gone it accepts no more, finishes what runs, and ends.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from gateway.app import App, build
from gateway.conf.model import Config
from gateway.kv import inquiry
from gateway.log_lines import NOTICE
from gateway.logs import log, open_error_log
from gateway.process import server
from gateway.process.channel import Channel
from gateway.process.identity import become
from gateway.process.link import Link
from gateway.process.memory import Memory
from gateway.process.orders import Address, Answer, Apply, Leave, News, Reopen, Responses, State

FOR_THE_LOOP = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1})


@dataclass(frozen=True, slots=True)
class Post:
    """What a child is born with."""

    slot: int
    config: Config
    memory: Memory
    channel: Channel
    sockets: dict[Address, socket.socket] = field(default_factory=dict)
    state: State = field(default_factory=State)
    news: News = field(default_factory=News)


class Worker:
    def __init__(self, post: Post) -> None:
        self._post = post
        self._swap = asyncio.Lock()
        self._swapping: set[asyncio.Task[None]] = set()
        self._link = Link(post.channel, self._obey, self._orphaned)
        self.app: App = build(post.config, post.memory, self._ask, self._tell_models)
        self.app.life.state = post.state
        self.app.caches.again = self._ask_again
        self._hear(post.news)
        for address, listener in self.app.by_address.items():
            listener.sock = post.sockets[address]
        config = post.config
        drain = server.Drain(
            config.shutdown_delay_s, config.shutdown_timeout_s, self._announce,
            lambda: self.app.pipeline.decisions.two.waits,
        )  # fmt: skip
        self.server = server.Server(self.app.asgi, self.app.pipeline, self.app.listeners, drain)
        self.server.began = self._begin
        self._core = post.memory.ledger.core
        self.app.pulse.turns += [self._say_clients, self._tell_responses]
        self._share(config)

    def _share(self, config: Config) -> bool:
        """Whether sockets are shared with other workers has changed."""
        before = self.server.ahead is not None
        self.server.ahead = self._ahead if config.worker_processes > 1 else None
        return before != (self.server.ahead is not None)

    def _ahead(self) -> int:
        self._say_clients()
        fewest = self._core.fewest_clients()
        return 0 if fewest is None else len(self.server.connections) - fewest

    def _say_clients(self) -> None:
        leaving = self.server.should_exit
        self._core.say_clients(None if leaving else len(self.server.connections))

    # ---- what the server calls ----

    def _begin(self) -> None:
        """It accepts connections."""
        loop = asyncio.get_running_loop()
        self._link.start()
        loop.add_signal_handler(signal.SIGUSR1, self._reopen)
        # Blocked since before the fork: nothing sent to a newborn is lost.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_LOOP)
        addresses = ", ".join(self.app.life.listeners)
        log.log(NOTICE, "worker %d: serving on %s", self._post.slot, addresses)
        self._link.tell({"ready": True})

    def _announce(self) -> None:
        self.app.life.draining = True

    # ---- the master ----

    def _obey(self, order: Any) -> None:
        match order:
            case State():
                self.app.life.state = order
            case News():
                self._hear(order)
            case Responses():
                now = monotonic()
                for name, upstream, address in order.rows:
                    known = self.app.pipeline.responses
                    known.hear(name.encode("latin-1"), upstream, address, now)
            case Apply():
                task = asyncio.get_running_loop().create_task(self._apply(order))
                self._swapping.add(task)
                task.add_done_callback(self._swapping.discard)
            case Reopen():
                self._reopen()
            case Leave():
                self._announce()
                self.server.leave()

    def _orphaned(self) -> None:
        if not self.server.should_exit:
            log.critical("the master is gone: worker %d finishes and ends", self._post.slot)
            self._announce()
            self.server.leave()

    async def _ask(self, change: dict[str, Any]) -> Answer:
        return await self._link.ask(change)

    def _tell_models(self, upstream: str, cards: list[dict[str, Any]]) -> None:
        self._link.tell({"models": {"upstream": upstream, "cards": cards}})

    def _ask_again(self, upstream: str, server: str) -> None:
        self._link.tell({"ask": {"upstream": upstream, "server": server}})

    def _tell_responses(self) -> None:
        new = self.app.pipeline.responses.untold()
        if new:
            rows = [(name.decode("latin-1"), *where) for name, *where in new]
            self._link.tell({"responses": rows})

    def _hear(self, news: News) -> None:
        for (upstream, address), why in news.whys.items():
            group = self.app.table.groups.get(upstream)
            engine = None if group is None else group.by_address.get(address)
            if engine is not None:
                engine.why = why
        for upstream, cards in news.cards.items():
            self.app.models.hear(upstream, cards)
        for where, found in news.sources.items():
            self.app.caches.hear(*where, found)
        for where, facts in news.facts.items():
            inquiry.hear(self.app.table, *where, facts)

    async def _apply(self, order: Apply) -> None:
        """Another configuration, in place. One at a time; the last step of each is its report."""
        async with self._swap:
            try:
                await self._take(order)
            except Exception as error:  # the master replaces a worker that cannot follow
                log.exception("configuration %d cannot be taken", order.generation)
                self._link.tell({"failed": order.generation, "why": str(error)})
            else:
                self._link.tell({"applied": order.generation})

    async def _take(self, order: Apply) -> None:
        memory, app = self._post.memory, self.app
        memory.ledger.handles = dict(order.engines)
        memory.stats.series.clear()
        memory.stats.series.update(order.series)
        swapped = app.apply(order.config)
        if self._share(order.config):
            swapped.renewed = [li for li in app.listeners if li not in swapped.added]
        for listener in swapped.added:
            listener.sock = self._link.sockets.pop(listener.wanted.address)
            self.server.listeners.append(listener)
            await self.server.listen(listener)
        for listener in swapped.renewed:
            await self.server.listen(listener)
        for listener in swapped.removed:
            self.server.listeners.remove(listener)
            self.server.forget(listener)
        for sock in self._link.sockets.values():
            sock.close()  # lent, and not asked for after all
        self._link.sockets.clear()
        drain = self.server.drain
        drain.delay_s, drain.timeout_s = (
            order.config.shutdown_delay_s, order.config.shutdown_timeout_s,
        )  # fmt: skip

    def _reopen(self) -> None:
        open_error_log(self.app.config.error_log, self.app.config.error_level)
        self.app.writer.reopen()


def run(post: Post) -> int:
    """The whole life of a worker; its exit status."""
    post.memory.bind(post.slot)
    worker = Worker(post)
    become(post.config)
    return server.run(worker.server)


Run = Callable[[Post], int]
