"""Runs the errands between the core and the store, on a thread and an event loop of its own.

Invariants: at most `concurrency` fetches and half as many sends are under way; each errand is
reported on exactly once; while the breaker is open nothing is asked of the store, and its blocks
are misses.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gateway.log_lines import NOTICE
from kvbm.conf.model import Remote
from kvbm.logs import Seldom, log
from kvbm.remote import StoreError, layout
from kvbm.remote.breaker import Breaker
from kvbm.remote.room import Room
from kvbm.remote.store import Store
from native import _core

PATIENCE_S = 0.1  # how long a look for errands waits
LOOK_S = 1.0  # how often it is looked whether engines have named another namespace
AGAIN_MAX = 4096  # sends that failed and are tried again
TRIES_MAX = 8  # of one block; while the store is away one block at a time is tried
Errand = tuple[str, int, bytes, bytes]


@dataclass(slots=True)
class Counts:
    sent: int = 0
    sent_bytes: int = 0
    deduped: int = 0
    send_failed: int = 0
    deleted: int = 0
    listed: int = 0
    opened: int = 0  # times the breaker opened


class Courier:
    """`start` and `stop` once each, from any thread."""

    def __init__(self, remote: Remote, core: _core.KvbmCore) -> None:
        self._options = remote
        self._core = core
        self._door = core.remote()
        self._store = Store(remote)
        self._breaker = Breaker(remote.failures, remote.pause_s, remote.slow_s)
        self._paused = False
        self._seldom = Seldom()
        self._counts = Counts()
        self._again: deque[Errand] = deque(maxlen=AGAIN_MAX)
        self._listed: dict[bytes, float] = {}
        self._threads = ThreadPoolExecutor(8, "kvbm-courier")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbm-courier")

    def start(self) -> None:
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Gives up what is under way."""
        self._stopping.set()
        loop, main = self._loop, self._main
        if loop is not None and main is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(main.cancel)
        self._thread.join()
        self._threads.shutdown(wait=True)

    def figures(self) -> dict[str, int | str]:
        """What the core cannot know, under names like its own."""
        counts = self._counts
        return {
            "remote_sent": counts.sent,
            "remote_sent_bytes": counts.sent_bytes,
            "remote_deduped": counts.deduped,
            "remote_send_failed": counts.send_failed,
            "remote_deleted": counts.deleted,
            "remote_listed": counts.listed,
            "remote_breaker_opened": counts.opened,
            "remote_trouble": self._breaker.why if self._paused else "",
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                asyncio.run(self._work())
            except asyncio.CancelledError:
                return
            except Exception:
                # The other tiers go on; errands that nobody reports on fail by themselves.
                log.exception("remote: begun anew")
                self._stopping.wait(LOOK_S)

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._begun.set()
        if self._stopping.is_set():
            return
        await self._probe()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fetches(group))
            group.create_task(self._sends(group))
            group.create_task(self._watch())

    async def _probe(self) -> None:
        try:
            await self._store.probe()
        except StoreError as error:
            log.error("remote: %s: %s", self._options.url, error)
            for _ in range(self._options.failures):
                self._failed(str(error))
        else:
            log.log(NOTICE, "remote: %s can be read and written", self._options.url)

    # ---- the breaker

    def _failed(self, why: str) -> None:
        self._breaker.failed(time.monotonic(), why)
        self._seldom.warn("remote", f"remote: {why}")
        self._follow()

    def _answered(self, took_s: float = 0.0) -> None:
        self._breaker.succeeded(time.monotonic(), took_s)
        self._follow()

    def _follow(self) -> bool:
        """Tells the core whether the store is left alone; whether it is."""
        is_open = self._breaker.is_open(time.monotonic())
        if is_open != self._paused:
            self._paused = is_open
            self._counts.opened += is_open
            self._door.pause(is_open)
            if is_open:
                log.error("remote: left alone for a while: %s", self._breaker.why)
            else:
                log.log(NOTICE, "remote: asked again")
        return is_open

    # ---- errands

    async def _take(self, fetches: int, ahead: int, sends: int) -> list[Errand] | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self._door.errands, fetches, ahead, sends, PATIENCE_S
        )

    async def _fetches(self, group: asyncio.TaskGroup) -> None:
        most, ahead_most = self._options.concurrency, max(1, self._options.concurrency // 4)
        room, ahead = Room(most), Room(ahead_most)
        while True:
            await room.wait()
            free = room.free
            errands = await self._take(free, min(ahead.free, free), 0)
            if errands is None:
                return
            for errand in errands:
                mine = ahead if errand[0] == "ahead" else room
                group.create_task(mine.hold(self._fetch(errand)))

    async def _sends(self, group: asyncio.TaskGroup) -> None:
        room = Room(max(1, self._options.concurrency // 2))
        while True:
            await room.wait()
            while self._follow():
                await asyncio.sleep(PATIENCE_S)
            errands: list[Errand] | None
            if self._again:
                errands = [self._again.popleft()]
            else:
                errands = await self._take(0, 0, room.free)
            if errands is None:
                return
            for errand in errands:
                work = self._delete if errand[0] == "delete" else self._send
                group.create_task(room.hold(work(errand)))

    async def _fetch(self, errand: Errand) -> None:
        _, ticket, fingerprint, key = errand
        if self._follow():
            self._door.missed(ticket, False)
            return
        began = time.monotonic()
        try:
            record = await self._store.get(layout.block(fingerprint, key))
        except StoreError as error:
            self._door.missed(ticket, False)
            self._failed(str(error))
            return
        self._answered(time.monotonic() - began)
        if record is None:
            self._door.missed(ticket, True)
        elif not self._door.fetched(ticket, record):
            self._seldom.warn("damaged", "remote: a damaged object was deleted")

    async def _send(self, errand: Errand) -> None:
        _, tries, fingerprint, key = errand  # a send has no ticket: its number counts tries
        loop = asyncio.get_running_loop()
        try:
            record = await loop.run_in_executor(self._threads, self._core.read, fingerprint, key)
            if record is None:  # it was evicted or dropped meanwhile
                return
            created = await self._store.create(layout.block(fingerprint, key), record)
        except (StoreError, TimeoutError) as error:
            self._counts.send_failed += 1
            if tries + 1 < TRIES_MAX:
                self._again.append(("send", tries + 1, fingerprint, key))
            self._failed(str(error))
            return
        self._answered()
        self._counts.sent += created
        self._counts.sent_bytes += len(record) if created else 0
        self._counts.deduped += not created
        await self._known(fingerprint, [key])

    async def _delete(self, errand: Errand) -> None:
        _, _, fingerprint, key = errand
        try:
            await self._store.delete(layout.block(fingerprint, key))
        except StoreError as error:
            self._failed(str(error))
            return
        self._counts.deleted += 1
        self._answered()

    async def _known(self, fingerprint: bytes, keys: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            await loop.run_in_executor(self._threads, self._door.known, fingerprint, keys, True)

    # ---- what others have sent

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                rows = await loop.run_in_executor(self._threads, self._core.namespaces)
                for _, fingerprint, _, descriptor in rows:
                    await self._refresh(fingerprint, descriptor)
            self._follow()
            await asyncio.sleep(LOOK_S)

    async def _refresh(self, fingerprint: bytes, descriptor: bytes) -> None:
        now, last = time.monotonic(), self._listed.get(fingerprint)
        every = self._options.refresh_s
        due = last is None or (every > 0 and now >= last + every)
        if not due or self._follow():
            return
        try:
            if last is None and self._options.upload != "off":
                await self._store.create(layout.description(fingerprint), descriptor)
            async for names in self._store.names(layout.folder(fingerprint)):
                keys = [key for name in names if (key := layout.key(name)) is not None]
                self._counts.listed += len(keys)
                await self._known(fingerprint, keys)
        except StoreError as error:
            self._failed(str(error))
            return
        self._answered()
        self._listed[fingerprint] = now
