"""Stores and loads of one engine between its host memory and kvbm's daemon.

Invariants: a job that was taken is reported once, and not before nobody is at its slots. A block
whose load failed is a miss for a while, so that no request asks for it for ever. Stores never hold
more than a part of the engine's memory, however slow the daemon is: later ones are dropped.

A load that would take longer than computing is not begun (`load_gate`).

For one thread, the engine's scheduler; no call waits longer than the client does (1 ms), but for
`drain`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.vllm.doomed import Doomed
from engines.vllm.load_gate import GATED_S, REMOTE, LoadGate
from native import _core

BATCH_MAX = 4096
TOUCHED_MAX = 4096
# Of the engine's slots, what stores may hold.
STORE_SHARE = 4
MISS, UNKNOWN = 0, 255
# Of a block that did not come by its job's deadline.
TIMEOUT = 20
# Statuses of a load that say nothing against a block: there; the daemon is gone, and all is a miss
# until one is back.
NO_FAULT = frozenset((0, 21))
# Statuses of a store that did what was configured: there, not seen often enough, write budget
# spent, nothing to write.
AS_ASKED = frozenset((0, 3, 4, 23))


@dataclass(frozen=True, slots=True)
class Ended:
    """A job's end. `good`: the blocks that are where they should be now."""

    job: int
    is_load: bool
    ok: bool
    good: tuple[bytes, ...]
    moved_bytes: int
    spent_s: float


@dataclass(slots=True)
class _Job:
    number: int
    is_load: bool
    slots: int
    parts: int = 0
    expected_us: int = 0
    tier: int = 0
    ok: bool = True
    good: list[bytes] = field(default_factory=list)
    moved_bytes: int = 0
    spent_us: int = 0


@dataclass(slots=True)
class Figures:
    """Blocks since the start. `shed`: their store was not begun; `failed`: they were promised and
    did not come; `gated`: they were found, and computed since that is quicker."""

    stored: int = 0
    loaded: int = 0
    shed: int = 0
    failed: int = 0
    gated: int = 0


class BlockJobs:
    """`slots`: of the memory that was lent as region 0. Times are seconds of the monotonic
    clock."""

    def __init__(
        self,
        client: _core.KvbmClient,
        slots: int,
        gate: LoadGate,
        load_s: float = 2.0,
        store_s: float = 10.0,
    ) -> None:
        self._client, self._gate = client, gate
        self._store_most = max(1, slots // STORE_SHARE)
        self._load_us, self._store_us = int(load_s * 1e6), int(store_s * 1e6)
        self._parts: dict[int, tuple[_Job, Sequence[bytes]]] = {}
        self._numbers = itertools.count(1)
        self._ended: list[Ended] = []
        self._storing = 0
        self._is_there = True
        self._doomed = Doomed()
        self._touched: dict[bytes, None] = {}
        # Blocks of the object store that were found in this step.
        self._remote: set[bytes] = set()
        self.figures = Figures()

    @property
    def under_way(self) -> bool:
        """Whether there is a job to be reported."""
        return bool(self._parts or self._ended)

    def lookup(self, name: bytes, now: float) -> int:
        """The tier that has the block (2 disk, 3 remote), 0 for a miss. Whether there is a daemon
        is looked at once per `finished`, which an engine asks for in every step."""
        if not self._is_there:
            return MISS
        if self._doomed.has(name, now):
            return MISS
        tier = self._client.lookup([name])[0]
        if tier == REMOTE:
            self._remote.add(name)
        return MISS if tier == UNKNOWN else tier

    def store(self, job: int, names: Sequence[bytes], slots: Sequence[int]) -> None:
        if self._storing and self._storing + len(names) > self._store_most:
            self.figures.shed += len(names)
            self._ended.append(Ended(job, False, False, (), 0, 0.0))
            return
        self._begin(_Job(job, False, len(names)), names, slots)

    def load(self, job: int, names: Sequence[bytes], slots: Sequence[int], now: float) -> None:
        remote = sum(name in self._remote for name in names)
        plan = self._gate.plan(self._client, len(names), remote, self._load_us)
        if plan.limit_us == 0:
            self.figures.gated += len(names)
            self._doomed.add(names, now, GATED_S)
            self._gate.refuse(self._client, names, now)
            self._ended.append(Ended(job, True, False, (), 0, 0.0))
            return
        begun = self._begin(
            _Job(job, True, len(names), expected_us=plan.daemon_us, tier=plan.tier),
            names,
            slots,
            plan.limit_us,
        )
        self.figures.failed += len(names) - begun
        self._doomed.add(names[begun:], now)

    def _begin(
        self, job: _Job, names: Sequence[bytes], slots: Sequence[int], load_us: int = 0
    ) -> int:
        """How many blocks are under way; those behind them are not touched."""
        begun = 0
        for at in range(0, len(names), BATCH_MAX):
            part, places = names[at : at + BATCH_MAX], slots[at : at + BATCH_MAX]
            number = next(self._numbers)
            if job.is_load:
                taken = self._client.load(number, part, places, deadline_us=load_us)
            else:
                taken = self._client.store(number, part, places, deadline_us=self._store_us)
            if not taken:
                job.ok = False
                break
            self._parts[number] = (job, part)
            job.parts += 1
            begun += len(part)
        if not job.is_load:
            self.figures.shed += len(names) - begun
            self._storing += job.slots if job.parts else 0
        if not job.parts:
            self._ended.append(Ended(job.number, job.is_load, job.ok, (), 0, 0.0))
        return begun

    def finished(self, now: float) -> list[Ended]:
        """Jobs that ended since the last call; their slots are the engine's again."""
        for done in self._client.poll():
            self._part_ended(done, now)
        self._is_there = self._client.connected
        ended, self._ended = self._ended, []
        return ended

    def _part_ended(self, done: _core.KvbmDone, now: float) -> None:
        job, names = self._parts.pop(done.job)
        statuses = done.statuses
        good = [name for name, status in zip(names, statuses, strict=True) if status == 0]
        job.parts -= 1
        job.good += good
        job.moved_bytes += done.moved_bytes
        job.spent_us = max(job.spent_us, done.spent_us)
        if job.is_load:
            job.ok = job.ok and len(good) == len(names)
            self.figures.loaded += len(good)
            failed = len(names) - len(good)
            self.figures.failed += failed
            if failed:
                told = zip(names, statuses, strict=True)
                self._doomed.add([name for name, status in told if status not in NO_FAULT], now)
        else:
            job.ok = job.ok and all(status in AS_ASKED for status in statuses)
            self.figures.stored += len(good)
            self._doomed.forgive(good)
        if job.parts:
            return
        if job.is_load:
            is_late = TIMEOUT in statuses
            self._gate.took(job.expected_us, job.tier, job.spent_us, is_late=is_late)
        else:
            self._storing -= job.slots
        spent_s = job.spent_us / 1e6
        self._ended.append(
            Ended(job.number, job.is_load, job.ok, tuple(job.good), job.moved_bytes, spent_s)
        )

    def touch(self, names: Sequence[bytes]) -> None:
        """Counts a use of blocks; told with the next `step`, as far as that holds them."""
        room = TOUCHED_MAX - len(self._touched)
        self._touched.update(dict.fromkeys(names[:room]))

    def step(self) -> None:
        """At the end of a scheduler's step: what was touched in it is told, in one message."""
        self._remote.clear()
        if self._touched:
            self._client.touch(list(self._touched))
            self._touched.clear()

    def drain(self, *, cancel: bool = False) -> None:
        """Waits for every job's end: at most for their deadlines, or, cancelled, until nobody is at
        their slots. `finished` still reports them."""
        if cancel:
            for number in list(self._parts):
                self._client.cancel(number)
        while self._parts:
            for done in self._client.poll():
                self._part_ended(done, time.monotonic())
            if self._parts:
                time.sleep(0.001)
