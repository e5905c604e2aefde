"""Wiring: a configuration becomes components and a server. Only this file knows all others."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from starlette.applications import Starlette

from gateway import api, fronts, server, tls
from gateway.admit import Gatehouse
from gateway.conf.model import Config, Server
from gateway.engines import EngineTable
from gateway.fronts import Front
from gateway.health import Health
from gateway.ledger import Ledger
from gateway.limits import Zones
from gateway.logs import NOTICE, Writer, log, open_error_log
from gateway.metrics import KvgateCollector, registry
from gateway.models import Models
from gateway.pipeline import Pipeline
from gateway.record import Recorder
from gateway.responses import ResponseMap
from gateway.stats import Statistics
from gateway.status import Life, Status
from gateway.upstream import ControlPlane, tls_context
from native import relay

CANNOT_BIND = 3
FAILED = 1


@dataclass(slots=True)
class App:
    """One worker's components, wired."""

    config: Config
    pipeline: Pipeline
    asgi: api.Recorded
    listeners: list[server.Listener]
    table: EngineTable
    health: Health
    models: Models
    control: ControlPlane
    writer: Writer
    life: Life
    zones: Zones

    async def start(self) -> None:
        """Background work; needs a running loop."""
        asyncio.get_running_loop().set_exception_handler(_loop_fault)
        # What is here now stays; requests leave no cycles behind, so looking for some can be rare.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        self.health.sync()
        self.models.start()

    async def stop(self) -> None:
        await self.health.close()
        await self.models.close()
        await self.control.close()
        self.table.close()
        self.writer.close()


def build(config: Config) -> App:
    """Components of a worker. Raises OSError (a log or certificate), ValueError (more engines or
    series than there is room for).
    """
    upstream_tls = tls_context()
    table = EngineTable(Ledger(), upstream_tls)
    table.apply(config.upstreams.values(), fronts.schemes(config), monotonic())
    stats, writer, life, zones = Statistics(), Writer(), Life(), Zones()
    compiled = fronts.build(config, table, stats, writer, zones)
    control = ControlPlane(upstream_tls)
    health, models = Health(table, control), Models(table, control)
    models.catalogs = compiled.catalogs
    gatehouse, responses = Gatehouse(config.worker_connections), ResponseMap()
    recorder = Recorder(gatehouse, stats, responses)
    pipeline = Pipeline(table, models, gatehouse, stats, responses, recorder)
    listeners = [_listener(front) for front in compiled.by_address.values()]
    tags = tuple(listener.tag for listener in listeners)
    status = Status(table, health, gatehouse, stats, tags, life)
    collector = KvgateCollector(stats, table, gatehouse, writer, responses)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await app.start()
        log.log(NOTICE, "serving on %s", ", ".join(tags))
        try:
            yield
        finally:
            await app.stop()

    asgi = api.build(pipeline, status, registry(collector), lifespan)
    asgi.listener = listeners[0] if listeners else None
    app = App(
        config, pipeline, asgi, listeners, table, health, models, control, writer, life, zones
    )
    return app


def _listener(front: Front) -> server.Listener:
    listen = front.listen
    return server.Listener(
        tag=listen.address,
        limits=_limits(front.default),
        server_ctx=front,
        host=listen.host,
        port=listen.port,
        unix_path=listen.unix_path,
        unix_mode=0o600 if front.is_admin else 0o666,
        backlog=listen.backlog,
        ssl_context=tls.context(front),
    )


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


def run(config: Config) -> int:
    """Serves until a signal ends it; the exit status (0 ended, 1 failed, 3 cannot bind)."""
    try:
        open_error_log(config.error_log, config.error_level)
        relay.body_budget.limit = config.body_buffer_total
        relay.client_limit.limit = config.worker_connections
        app = build(config)
        for listener in app.listeners:
            listener.bind()
        if config.pid:
            Path(config.pid).write_text(f"{os.getpid()}\n")
    except server.ListenError as error:
        print(f"kvgate: {error}", file=sys.stderr)
        return CANNOT_BIND
    except (OSError, ValueError) as error:
        print(f"kvgate: {error}", file=sys.stderr)
        return FAILED
    drain = server.Drain(
        delay_s=config.shutdown_delay_s,
        timeout_s=config.shutdown_timeout_s,
        announce=lambda: setattr(app.life, "draining", True),
    )
    log.log(NOTICE, "kvgate starts with `%s`, pid %d", config.file, os.getpid())
    try:
        return server.run(server.Server(app.asgi, app.pipeline, app.listeners, drain))
    finally:
        if config.pid:
            Path(config.pid).unlink(missing_ok=True)
        log.log(NOTICE, "kvgate ends, pid %d", os.getpid())


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
