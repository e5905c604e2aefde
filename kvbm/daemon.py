"""The daemon's process: opens the tiers, serves administration beside them, ends in order.

TERM and INT end it, HUP reads the configuration again. The core serves engines on threads of its
own: nothing here is on their way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.conf.errors import ConfigErrors, one_line
from gateway.log_lines import NOTICE
from kvbm.access import App, Guard
from kvbm.admin import Subject, application, metrics_application
from kvbm.conf.load import Loaded
from kvbm.conf.model import Address, Config
from kvbm.drops import Drops
from kvbm.listen import Server, listen, server
from kvbm.logs import log, open_log
from kvbm.losses import Losses
from kvbm.metrics import registry
from kvbm.paths import make_directory, why
from kvbm.publisher import Publisher
from kvbm.reload import changes
from kvbm.remote import StoreError
from kvbm.status import Life, status
from kvbm.tiers import open_core, tune
from kvbm.troubles import Troubles
from kvbm.verifying import Verifying
from native import VERSION, _core

if TYPE_CHECKING:
    from kvbm.remote.courier import Courier

WATCH_S = 0.5  # how often the core is looked at
Reread = Callable[[], Loaded]


class NotStarted(Exception):
    """The text says why, for people."""


@dataclass(slots=True)
class Pid:
    """The file with the process's number, while it runs."""

    path: str

    def write(self) -> None:
        if self.path:
            make_directory(os.path.dirname(self.path))
            with open(self.path, "w", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")

    def remove(self) -> None:
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


@dataclass(slots=True)
class Daemon:
    """One run. `config` is replaced by a reload."""

    config: Config
    core: _core.KvbmCore
    reread: Reread
    losses: Losses
    troubles: Troubles
    courier: Courier | None = None
    publishers: tuple[Publisher, ...] = ()
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    failed: bool = False
    verified: float = field(default_factory=time.monotonic)  # when that was begun the last time
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _servers: list[Server] = field(default_factory=list)

    async def serve(self, listeners: list[tuple[socket.socket, App]]) -> None:
        """Serves until a signal, or until the core has died (`failed`)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        tasks = []
        for sock, app in listeners:
            made = server(app)
            self._servers.append(made)
            tasks.append(asyncio.create_task(made.serve(sockets=[sock])))
        while not self._stop.is_set() and self.core.running:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), WATCH_S)
            with contextlib.suppress(TimeoutError):
                await self._verify(time.monotonic())
                await asyncio.to_thread(self.losses.look)
                await asyncio.to_thread(self.troubles.look)
        self.failed = not self._stop.is_set()
        for made in self._servers:
            made.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _verify(self, now: float) -> None:
        """Begins to read the whole disk, where that is due."""
        disk = self.config.disk
        if disk is None or not disk.verify_s or now < self.verified + disk.verify_s:
            return
        self.verified = now
        await asyncio.to_thread(self.losses.verify, disk.verify_rate)

    def figures(self) -> dict[str, int | str]:
        """The core's, and those of the store and the events beside it."""
        found = self.core.stats()
        if self.courier is not None:
            found.update(self.courier.figures())
        for publisher in self.publishers:
            found["event_batches"] = int(found.get("event_batches", 0)) + publisher.batches
            found["event_restarts"] = int(found.get("event_restarts", 0)) + publisher.restarts
        return found

    def status(self) -> dict[str, object]:
        now = time.monotonic()
        life = Life(os.getpid(), VERSION, round(self.started_at, 3), now - self.started)
        document = status(self.config, life, self.figures(), self.core.namespaces())
        document["events"] = [
            {"endpoint": p.endpoint, "replay": p.replay, "batches": p.batches}
            for p in self.publishers
        ]
        return document

    def reload(self) -> None:
        """Takes over what can change; a wrong file changes nothing."""
        try:
            fresh = self.reread().config
            open_log(fresh.error_log, fresh.error_level)
        except ConfigErrors as errors:
            log.error("not reloaded: the configuration is wrong")
            for error in errors.errors:
                log.error("%s", one_line(error))
            return
        except OSError as error:
            log.error("not reloaded: %s", why(error))
            return
        found = changes(self.config, fresh)
        for name in found.restart:
            log.warning("a change of `%s` needs a restart", name)
        self.config = found.config
        tune(self.core, found.config)
        log.log(NOTICE, "reloaded, changed: %s", ", ".join(found.live) or "nothing")


def run(config: Config, reread: Reread) -> int:
    """Runs until a signal. Raises NotStarted."""
    try:
        open_log(config.error_log, config.error_level)
        sockets = [(a, listen(a)) for a in (*config.admin, *config.metrics)]
        core = open_core(config)
    except OSError as error:
        raise NotStarted(why(error)) from None
    pid = Pid(config.pid)
    daemon = Daemon(config, core, reread, Losses(core), Troubles(core))
    try:
        pid.write()
        _begin(daemon)
        log.log(NOTICE, "kvbm %s serves at %s", VERSION, config.socket)
        asyncio.run(daemon.serve(_listeners(daemon, sockets)))
    except OSError as error:
        raise NotStarted(why(error)) from None
    except StoreError as error:
        raise NotStarted(str(error)) from None
    finally:
        for part in (*daemon.publishers, daemon.courier):
            if part is not None:
                part.stop()
        core.stop()
        pid.remove()
        _forget([address for address, _ in sockets])
    if daemon.failed:
        log.critical("the core has ended by itself")
        return 1
    log.log(NOTICE, "stopped")
    return 0


def _begin(daemon: Daemon) -> None:
    """Starts what works beside the core. Raises OSError, StoreError."""
    config, core = daemon.config, daemon.core
    for options in config.events:
        publisher = Publisher(options, core)
        publisher.start()
        daemon.publishers = (*daemon.publishers, publisher)
    if config.remote is not None:
        try:
            from kvbm.remote.courier import Courier  # a large package that is not needed without
        except ImportError as error:
            hint = "hint: pip install 'kvgate[remote]'"
            raise StoreError(f"the remote tier needs a package: {error}\n    {hint}") from None
        try:
            courier = Courier(config.remote, core)
        except StoreError as error:
            raise StoreError(f"remote {config.remote.url}: {error}") from None
        courier.start()
        daemon.courier = courier


def _listeners(
    daemon: Daemon, sockets: list[tuple[Address, socket.socket]]
) -> list[tuple[socket.socket, App]]:
    metrics = registry(daemon.figures, daemon.core.durations)
    verifying = Verifying(daemon.core, daemon.losses, daemon.courier)
    drops = Drops(daemon.core, daemon.courier)
    admin = application(Subject(daemon.core, verifying, drops, daemon.status, metrics))
    scraped = metrics_application(metrics)
    found: list[tuple[socket.socket, App]] = []
    for at, (address, sock) in enumerate(sockets):
        if at >= len(daemon.config.admin):
            found.append((sock, scraped))
            continue
        local = bool(address.unix_path)
        found.append((sock, Guard(admin, local, lambda: daemon.config.admin_token)))
    return found


def _forget(addresses: list[Address]) -> None:
    for address in addresses:
        if address.unix_path:
            with contextlib.suppress(OSError):
                os.unlink(address.unix_path)
