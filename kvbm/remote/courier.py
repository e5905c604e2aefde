"""Runs the errands between the core and the store, on a thread and an event loop of its own.

Fetches go past it: the native fetcher takes them by itself, and the breaker hears how they ended.
Invariants: at most `concurrency` fetches and half as many sends are under way; while the breaker is
open nothing is asked of the store, and its blocks are misses.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import uvloop

from gateway.log_lines import NOTICE
from kvbm.conf.model import Remote
from kvbm.logs import Seldom, log
from kvbm.remote import StoreError, layout
from kvbm.remote.breaker import Breaker
from kvbm.remote.clearance import Clearance
from kvbm.remote.counts import Counts
from kvbm.remote.inspection import Inspection
from kvbm.remote.room import Room
from kvbm.remote.store import Store, settings
from kvbm.remote.survey import Survey
from kvbm.remote.writer import Writer
from native import _core

PATIENCE_S = 0.1  # how long a look for errands waits
LOOK_S = 1.0  # how often it is looked whether engines have named another namespace
AGAIN_MAX = 4096  # sends and deletions that failed and are tried again
TRIES_MAX = 8  # of one; while the store is away one at a time is tried
Errand = _core.KvbmErrand
T = TypeVar("T")


class Courier:
    """`start` and `stop` once each, from any thread. Raises StoreError where it is no store."""

    def __init__(self, remote: Remote, core: _core.KvbmCore) -> None:
        self._options = remote
        self._core = core
        self._door = core.remote()
        self._store = Store(remote)
        given = (list(settings(remote).items()), remote.timeout_s, remote.concurrency)
        try:
            self._fetcher = self._door.fetcher(remote.url, *given)
        except ValueError as error:
            raise StoreError(str(error)) from None
        self._breaker = Breaker(remote.failures, remote.pause_s, remote.slow_s)
        self._paused = False
        self._seldom = Seldom()
        self._counts = Counts()
        self._again: deque[tuple[Errand, int]] = deque(maxlen=AGAIN_MAX)
        self._listed: dict[bytes, float] = {}
        self._threads = ThreadPoolExecutor(8, "kvbm-courier")
        here = (self._store, self._door, self._threads, self._counts)
        self._writer, self._survey = Writer(*here), Survey(*here)
        at_once = max(1, remote.concurrency // 4)
        self.clearance = Clearance(*here[:3], self._writer, self._survey, self.left_alone)
        self.inspection = Inspection(*here, at_once, self.left_alone)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._handing = threading.Lock()
        self._asked: dict[Future[Any], Coroutine[Any, Any, Any]] = {}  # that has not ended
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
        self._fetcher.stop()
        self._threads.shutdown(wait=True)

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Work of `clearance` or `inspection`, beside errands. Raises StoreError after `stop`."""
        with self._handing, contextlib.suppress(RuntimeError):  # a loop that has ended
            loop = self._loop
            if loop is not None and not self._stopping.is_set():
                future = asyncio.run_coroutine_threadsafe(work, loop)
                self._asked[future] = work
                future.add_done_callback(lambda done: self._asked.pop(done, None))
                return future
        work.close()
        raise StoreError("the object store's thread is about to end, or to begin anew")

    def _leave(self) -> None:
        """The loop has ended: it takes no more work, and what it did not come to is given up."""
        with self._handing:
            self._loop = None
            left = list(self._asked.items())
        for future, _ in left:
            future.cancel()
        for _, work in left:
            work.close()

    def left_alone(self) -> str:
        """Why nothing is asked of the store for the moment; empty: it is."""
        return self._breaker.why if self._breaker.is_open(time.monotonic()) else ""

    def figures(self) -> dict[str, int | str]:
        """What the core cannot know, under names like its own."""
        counts = self._counts
        return {
            "remote_sent": counts.sent,
            "remote_sent_bytes": counts.sent_bytes,
            "remote_bundles_sent": counts.bundles,
            "remote_bundled": counts.bundled,
            "remote_bundles_bad": counts.bad_bundles,
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
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._work())
            except asyncio.CancelledError:
                return
            except Exception as error:
                # The other tiers go on; errands that nobody reports on fail by themselves.
                log.exception("remote: begun anew after a pause")
                self._give_up(f"{type(error).__name__}: {error}")
                self._leave()  # before the wait
                self._stopping.wait(self._options.pause_s)
            finally:
                self._leave()

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._survey.lock = asyncio.Lock()  # the former one is the former loop's
        self._begun.set()
        if self._stopping.is_set():
            return
        await self._probe()
        self._fetcher.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear())
            group.create_task(self._sends(group))
            group.create_task(self._watch())

    async def _probe(self) -> None:
        try:
            await self._store.probe()
        except StoreError as error:
            log.error("remote: %s: %s", self._options.url, error)
            self._give_up(str(error))
        else:
            log.log(NOTICE, "remote: %s can be read and written", self._options.url)

    # ---- the breaker

    def _give_up(self, why: str) -> None:
        """The store is left alone from now on."""
        for _ in range(self._options.failures):
            self._failed(why)

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

    async def _hear(self) -> None:
        """How fetches ended."""
        loop, reports = asyncio.get_running_loop(), self._fetcher.reports
        while True:
            ended = await loop.run_in_executor(self._threads, reports, PATIENCE_S)
            if ended is None:
                return
            for took_s, trouble, damage in ended:
                if trouble is None:
                    self._answered(took_s)
                else:
                    self._failed(trouble)
                if damage is not None:
                    self._seldom.warn("damaged", f"remote: {damage}")
            self._follow()

    async def _take(self, sends: int) -> list[Errand] | None:
        # Without a wait there is no hand-over between threads while places are free.
        errands = self._door.errands(0, 0, sends, 0.0)
        if errands is None or errands:
            return errands
        loop, wait = asyncio.get_running_loop(), self._door.errands
        return await loop.run_in_executor(self._threads, wait, 0, 0, sends, PATIENCE_S)

    async def _sends(self, group: asyncio.TaskGroup) -> None:
        room = Room(max(1, self._options.concurrency // 2))
        while True:
            await room.wait()
            while self._follow():
                await asyncio.sleep(PATIENCE_S)
            tried: list[tuple[Errand, int]]
            if self._again:
                tried = [self._again.popleft()]
            else:
                errands = await self._take(room.free)
                if errands is None:
                    return
                tried = [(errand, 0) for errand in errands]
            for errand, tries in tried:
                group.create_task(room.hold(self._write(errand, tries)))

    async def _write(self, errand: Errand, tries: int) -> None:
        work = {"send": self._writer.send, "delete": self._writer.delete, "mark": self._writer.mark}
        try:
            asked = await work[errand.kind](errand)
        except (StoreError, TimeoutError) as error:
            if errand.kind == "send":
                self._counts.send_failed += len(errand.keys)
            if tries + 1 < TRIES_MAX:
                self._again.append((errand, tries + 1))
            self._failed(str(error))
            return
        if asked:
            self._answered()

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
            await self._survey.refresh(fingerprint)
        except StoreError as error:
            self._failed(str(error))
            return
        self._answered()
        self._listed[fingerprint] = now
