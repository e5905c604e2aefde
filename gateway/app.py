"""Wiring: a configuration becomes the components of a worker. Only this file knows all of them.

Invariant: `App.apply` swaps to another configuration in one step of the event loop: what runs
keeps the plan it began with, what comes next gets the new one.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from starlette.applications import Starlette

from gateway import api
from gateway.admit import Gatehouse
from gateway.conf.model import Config, Server
from gateway.dashboard import pages
from gateway.dashboard.receipts import Receipts
from gateway.disagg.metrics import DisaggCollector
from gateway.fleet.engines import EngineTable
from gateway.fleet.health import Health
from gateway.fleet.models import Models
from gateway.fleet.responses import ResponseMap
from gateway.fleet.upstream import ControlPlane, tls_context
from gateway.kv.caches import Caches
from gateway.kv.decisions import Decisions
from gateway.kv.discovery import Discovery
from gateway.kv.engine_tokens import EngineTokens
from gateway.kv.event_metrics import EventCollector
from gateway.kv.inquiry import Inquiry, hear
from gateway.kv.metrics import KvCollector
from gateway.kv.token_source import TokenSource
from gateway.kv.tokens import TokenSources
from gateway.logs import Writer, check_log, log, open_error_log
from gateway.metrics import KvgateCollector, registry
from gateway.pipeline import Pipeline
from gateway.process.memory import Memory
from gateway.process.metrics import ProcessCollector
from gateway.process.orders import Address
from gateway.process.pulse import Pulse
from gateway.process.server import Listener
from gateway.process.sockets import Wanted
from gateway.record import Recorder
from gateway.route_metrics import RouteCollector
from gateway.site import fronts, tls
from gateway.site.fronts import Front
from gateway.status import Life, Status
from native import relay
from native._core import Index

_COLLECTED_RARELY = 50_000, 20, 100
_COLLECTED_OFTEN = 700, 10, 10  # CPython's own


@dataclass(slots=True)
class Swapped:
    """Listeners that a new configuration added, removed, or gave another TLS context."""

    added: list[Listener]
    removed: list[Listener]
    renewed: list[Listener]


@dataclass(slots=True)
class App:
    """One worker's components, wired. Without a master it checks engines itself (`alone`)."""

    config: Config
    memory: Memory
    pipeline: Pipeline
    asgi: api.Recorded
    by_address: dict[Address, Listener]
    table: EngineTable
    health: Health
    models: Models
    caches: Caches
    discovery: Discovery
    inquiry: Inquiry
    control: ControlPlane
    writer: Writer
    life: Life
    pulse: Pulse
    alone: bool

    @property
    def listeners(self) -> list[Listener]:
        return list(self.by_address.values())

    async def start(self) -> None:
        """Background work; needs a running loop."""
        asyncio.get_running_loop().set_exception_handler(_loop_fault)
        # What is here now stays; requests leave no cycles behind, so looking for some can be rare.
        gc.freeze()
        gc.set_threshold(*_COLLECTED_RARELY)
        if self.alone:
            self.health.sync()
            self.discovery.sync()
            self.inquiry.sync()
            self.models.start()
        else:
            self.pulse.start()
        self.pipeline.tokens.start()
        self.caches.start()

    async def stop(self) -> None:
        gc.unfreeze()  # a process that goes on, as those of tests do, wants its memory back
        gc.set_threshold(*_COLLECTED_OFTEN)
        self.pulse.stop()
        await self.pipeline.tokens.close()
        await self.health.close()
        await self.discovery.close()
        await self.inquiry.close()
        self.caches.close()
        await self.models.close()
        await self.control.close()
        self.table.close()
        self.writer.close()

    def apply(self, config: Config) -> Swapped:
        """Takes a new configuration. Raises OSError (a log or certificate)."""
        open_error_log(config.error_log, config.error_level)
        self.pulse.say()  # engines that leave have their last word
        self.table.apply(config.upstreams.values(), fronts.schemes(config), monotonic())
        compiled = fronts.build(
            config, self.table, self.memory.stats, self.writer, self.memory.zones
        )
        contexts = {a: tls.context(front) for a, front in compiled.by_address.items()}
        swapped = Swapped([], [], [])
        for address in self.by_address.keys() - compiled.by_address.keys():
            swapped.removed.append(self.by_address.pop(address))
        for address, front in compiled.by_address.items():
            listener = self.by_address.get(address)
            if listener is None:
                self.by_address[address] = made = _listener(front)
                swapped.added.append(made)
            else:
                if listener.ssl_context is not None or contexts[address] is not None:
                    swapped.renewed.append(listener)
                listener.limits, listener.server_ctx = _limits(front.default), front
                listener.ssl_context = contexts[address]
        self.control.adopt(fronts.ways(config))
        self.models.adopt(compiled.catalogs)
        self.pipeline.tokens.sync()
        self.caches.apply()
        self._settle(config)
        self.writer.keep(compiled.sinks())
        self.writer.reopen()
        return swapped

    def _settle(self, config: Config) -> None:
        """The plain values of a configuration."""
        self.config = config
        self.pipeline.gatehouse.limit = config.worker_connections
        relay.body_budget.limit = config.body_buffer_total
        relay.client_limit.limit = config.worker_connections
        self.life.listeners = tuple(listener.tag for listener in self.listeners)
        self.asgi.listener = self.listeners[0] if self.by_address else None
        if self.alone:
            self.health.sync()
            self.discovery.sync()
            self.inquiry.sync()
        else:
            self.pulse.look(monotonic(), again=True)


def build(
    config: Config,
    memory: Memory | None = None,
    ask: api.Ask | None = None,
    tell_models: Callable[[str, list[dict[str, Any]]], None] | None = None,
) -> App:
    """Components of a worker; `memory` None = it is alone. Raises OSError (a log or certificate),
    ValueError (more engines or series than there is room for).
    """
    alone = memory is None
    memory = memory or Memory()
    upstream_tls = tls_context()
    table = EngineTable(memory.ledger, upstream_tls, Index(config.kv_index_bytes))
    table.apply(config.upstreams.values(), fronts.schemes(config), monotonic())
    stats, writer, life = memory.stats, Writer(), Life()
    compiled = fronts.build(config, table, stats, writer, memory.zones)
    control = ControlPlane(upstream_tls)
    control.adopt(fronts.ways(config))
    health, models = Health(table, control), Models(table, control, tell_models)
    models.catalogs = compiled.catalogs
    gatehouse, responses = Gatehouse(config.worker_connections), ResponseMap()
    pulse = Pulse(memory, table, gatehouse, writer, responses)
    tokens = TokenSources(table, EngineTokens(control), models, os.environ)
    tokens.sync()
    caches = Caches(table, memory.trust, memory.events)
    discovery = Discovery(table, control, caches.hear)
    caches.again = discovery.again
    inquiry = Inquiry(table, control, partial(hear, table))
    tokens.changed = partial(_believe, table, caches)
    decisions = Decisions(table.index, caches, memory.kv, memory.disagg)
    recorder = Recorder(gatehouse, stats, responses, decisions, Receipts())
    pipeline = Pipeline(table, models, tokens, gatehouse, recorder)
    status = Status(table, stats, life, pulse.say, tokens, caches)
    shown = pages.build(status, table, memory, recorder.receipts)
    metrics = registry(
        RouteCollector(stats), KvgateCollector(stats, table, pulse.say),
        ProcessCollector(life, memory.delays), KvCollector(memory.kv, tokens),
        DisaggCollector(memory.disagg, table),
        EventCollector(memory.events, caches, table),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await app.start()
        try:
            yield
        finally:
            await app.stop()

    asgi = api.build(pipeline, status, metrics, shown, lifespan, ask)
    listeners = {address: _listener(front) for address, front in compiled.by_address.items()}
    app = App(
        config, memory, pipeline, asgi, listeners, table,
        health, models, caches, discovery, inquiry, control, writer, life, pulse, alone,
    )  # fmt: skip
    life.listeners = tuple(listener.tag for listener in app.listeners)
    asgi.listener = app.listeners[0] if listeners else None
    relay.body_budget.limit = config.body_buffer_total
    relay.client_limit.limit = config.worker_connections
    return app


def _believe(table: EngineTable, caches: Caches, upstream: str, source: TokenSource) -> None:
    """Events name blocks by token ids: without these they tell nothing."""
    group = table.groups.get(upstream)
    for engine in () if group is None else group.engines:
        caches.tokens(engine, source.state != "bytes", source.why)


def draft(config: Config, memory: Memory) -> tuple[Wanted, ...]:
    """Tries all that can fail about a configuration, and touches nothing that runs: what `build`
    and `apply` will do in workers. Opens the handles that they will look up. Returns the addresses
    to listen on; raises what they raise.
    """
    check_log(config.error_log)
    table = EngineTable(memory.ledger, tls_context())
    table.apply(config.upstreams.values(), fronts.schemes(config), monotonic())
    writer = Writer()
    try:
        compiled = fronts.build(config, table, memory.stats, writer, memory.zones)
        for front in compiled.by_address.values():
            tls.context(front)
    finally:
        writer.discard()
    return tuple(_wanted(front) for front in compiled.by_address.values())


def _wanted(front: Front) -> Wanted:
    listen = front.listen
    return Wanted(
        tag=listen.address,
        host=listen.host,
        port=listen.port,
        unix_path=listen.unix_path,
        unix_mode=0o600 if front.is_admin else 0o666,
        backlog=listen.backlog,
        reuseport=listen.reuseport,
    )


def _listener(front: Front) -> Listener:
    return Listener(_wanted(front), _limits(front.default), front, tls.context(front))


def _limits(default: Server) -> relay.Limits:
    return relay.Limits(
        header_bytes=default.header_bytes_max,
        header_count=default.header_count_max,
        header_timeout_s=default.client_header_timeout_s,
        body_timeout_s=default.client_body_timeout_s,
        keepalive_timeout_s=default.keepalive_timeout_s,
        keepalive_requests=default.keepalive_requests,
        send_timeout_s=default.send_timeout_s,
    )


def _loop_fault(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Faults that nobody awaits, the relay's among them: into the error log, once, with their
    traceback.
    """
    error = context.get("exception")
    log.error(
        "%s",
        context.get("message", "fault on the event loop"),
        exc_info=error if isinstance(error, BaseException) else None,
    )
