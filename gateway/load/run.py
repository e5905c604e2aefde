"""Sends requests when they are due, whatever became of those before: an open loop.

Invariant: a request's times count from the moment it was due. A cap on concurrency may hold it
back; how long, and how often, is told, and the clock of the request runs on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, process_time

from gateway.load.client import Pool, Reply, Target
from gateway.load.offer import Offer, Offers
from gateway.load.prompts import Writer

START_S = 0.1  # before the first request is due
LOOK_S = 0.1  # between looks at how late the loop is
YIELD_BYTES = 4096  # of a body, made without a look at the answers
LAGS_MAX = 100_000
CONCURRENCY_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Limits:
    """`concurrency`: requests at once; `timeout_s`: of one, from when it was due."""

    concurrency: int = CONCURRENCY_MAX
    timeout_s: float = 600.0


@dataclass(slots=True)
class Run:
    """What became of each request, in the order in which they were due. `held`: how many waited
    for the cap. `lags_s`: how late the client's own loop was; `cpu`: share of a core it used.
    """

    offers: Offers
    start_s: float
    replies: list[Reply] = field(default_factory=list)
    held: int = 0
    most: int = 0  # requests at once
    lags_s: list[float] = field(default_factory=list)
    cpu: float = 0.0
    stopped: bool = False  # by the user

    @property
    def window_s(self) -> float:
        """From the first due time to the last answer, or attempt at one."""
        ends = [max((reply.due_s, reply.done_s, *reply.chunks_s[-1:])) for reply in self.replies]
        return max(ends, default=self.start_s) - self.start_s


class Sender:
    """One run against one target."""

    def __init__(self, target: Target, path: str, writer: Writer, limits: Limits) -> None:
        self._pool = Pool(target)
        self._head = target.head(path)
        self._writer = writer
        self._limits = limits
        self._under_way: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(limits.concurrency)
        self._at_once = 0

    async def run(
        self, offers: Offers, stop: asyncio.Event, told: Callable[[Run, int], None]
    ) -> Run:
        """`stop`: what is under way then is cut, and what was not sent is left out. `told`: hears
        ten times a second of the run, and how many are under way. Raises OSError for a host that is
        not known."""
        await self._pool.resolve()
        run = Run(offers, monotonic() + START_S)
        watch = asyncio.create_task(self._watch(run, told))
        cpu_s, began_s = process_time(), monotonic()
        try:
            await self._pace(run, stop)
            await self._finish(run, stop)
        finally:
            watch.cancel()
            self._pool.close()
        run.cpu = (process_time() - cpu_s) / (monotonic() - began_s)
        return run

    async def _pace(self, run: Run, stop: asyncio.Event) -> None:
        for number, offer in enumerate(run.offers.requests):
            sent = await self._request(offer, number)  # before it is due
            due_s = run.start_s + offer.at_s
            if await _stopped_by(stop, due_s):
                return
            reply = Reply(due_s)
            run.replies.append(reply)
            task = asyncio.create_task(self._one(run, reply, sent))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _request(self, offer: Offer, number: int) -> bytes:
        """Answers are read meanwhile: a long prompt takes many milliseconds."""
        parts, made = [], 0
        for part in self._writer.parts(offer, number):
            parts.append(part)
            made += len(part)
            if made > YIELD_BYTES:
                made = 0
                await asyncio.sleep(0)
        body = b"".join(parts)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    async def _one(self, run: Run, reply: Reply, sent: bytes) -> None:
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time()
                + reply.due_s + self._limits.timeout_s - monotonic()
            ):  # fmt: skip
                if self._places.locked():
                    run.held += 1
                    began_s = monotonic()
                    await self._places.acquire()
                    reply.held_s = monotonic() - began_s
                else:
                    await self._places.acquire()
                self._at_once += 1
                run.most = max(run.most, self._at_once)
                try:
                    await self._pool.send(reply, sent)
                finally:
                    self._at_once -= 1
                    self._places.release()
        except TimeoutError:
            reply.end, reply.cause = "failed", "timeout"
            reply.done_s = monotonic()

    async def _finish(self, run: Run, stop: asyncio.Event) -> None:
        if self._under_way:
            stopping = asyncio.create_task(stop.wait())
            ending = asyncio.create_task(asyncio.wait(self._under_way))
            await asyncio.wait({stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            ending.cancel()
        if stop.is_set():
            run.stopped = True
            cut = [*self._under_way]
            for task in cut:
                task.cancel()
            await asyncio.gather(*cut, return_exceptions=True)
            for reply in run.replies:
                if reply.done_s < 0 and not reply.cause:
                    reply.end = "cut"

    async def _watch(self, run: Run, told: Callable[[Run, int], None]) -> None:
        while True:
            began_s = monotonic()
            await asyncio.sleep(LOOK_S)
            if len(run.lags_s) < LAGS_MAX:
                run.lags_s.append(monotonic() - began_s - LOOK_S)
            told(run, len(self._under_way))


async def _stopped_by(stop: asyncio.Event, due_s: float) -> bool:
    """Whether the user stopped it before `due_s`."""
    await asyncio.sleep(0)  # answers are read, however far behind this is
    # Timers of whole milliseconds may be early, and nothing is sent before it is due.
    while not stop.is_set() and (left_s := due_s - monotonic()) > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), left_s)
    return stop.is_set()
