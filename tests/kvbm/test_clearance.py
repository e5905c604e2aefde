"""Deletions that are broken off."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kvbm.remote.clearance import BATCH, Clearance
from kvbm.remote.counts import Counts
from kvbm.remote.outcome import Cleared
from kvbm.remote.survey import Survey
from kvbm.remote.writer import Writer

PRINT = bytes(32)


@dataclass(slots=True)
class Errand:
    """Of a block that lies alone."""

    keys: list[bytes]
    kind: str = "delete"
    fingerprint: bytes = PRINT
    bundle: bytes | None = None


@dataclass(slots=True)
class Store:
    """The first request is carried out; later ones are never answered."""

    asked: int = 0
    hangs: asyncio.Event = field(default_factory=asyncio.Event)

    async def delete_many(self, paths: list[str]) -> None:
        self.asked += 1
        if self.asked > 1:
            self.hangs.set()
            await asyncio.Event().wait()


@dataclass(slots=True)
class Door:
    told: list[Errand] = field(default_factory=list)
    meet: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=20.0))

    def kept(self, errand: Errand) -> None:
        self.told.append(errand)

    def gone(self, fingerprint: bytes, keys: list[bytes], bundles: list[bytes]) -> int:
        """Waits for another one that asks at the same time."""
        self.meet.wait()
        return len(keys) + 4 * len(bundles)


@dataclass(slots=True)
class Quick:
    async def delete_many(self, paths: list[str]) -> None:
        return


def test_what_batches_find_at_the_same_time_is_added_up() -> None:
    cleared = Cleared()
    names = [n.to_bytes(32, "big") for n in range(3)]

    async def work(threads: ThreadPoolExecutor) -> None:
        here: Any = (Quick(), Door(), threads)
        both = Writer(*here, Counts()), Survey(*here, Counts())
        clearance = Clearance(*here, *both, lambda: "")
        await clearance._objects(PRINT, names[:1], names[1:], cleared)

    with ThreadPoolExecutor(2) as threads:
        asyncio.run(work(threads))
    assert (cleared.blocks, cleared.objects) == (9, 3)


def test_what_is_broken_off_is_known_again() -> None:
    errands = [Errand([n.to_bytes(32, "big")]) for n in range(BATCH + 3)]
    door, store = Door(), Store()

    async def work(threads: ThreadPoolExecutor) -> None:
        here: Any = (store, door, threads)
        both = Writer(*here, Counts()), Survey(*here, Counts())
        clearance = Clearance(*here, *both, lambda: "")
        drop: Any = clearance.errands(errands, Cleared())  # type: ignore[arg-type]
        task = asyncio.create_task(drop)
        await store.hangs.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(work(threads))
    assert door.told == errands[BATCH:]
