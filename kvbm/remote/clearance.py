"""Deletes on command: single blocks, or all that lies in the store of a namespace, whoever sent it.

Invariants: at most AT_ONCE requests are under way, beside the errands and not in their place; what
is held does not grow with the store; nothing is asked of a store that is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from kvbm.remote import StoreError, layout
from kvbm.remote.outcome import Cleared
from kvbm.remote.store import Store
from kvbm.remote.survey import Survey
from kvbm.remote.writer import Writer
from native import _core

AT_ONCE = 4
BATCH = 100  # objects of one request
ROUNDS = 5  # of one clearance: what was on its way is found by the next listing
PAUSE_S = 0.02
GIVE_UP = 3  # requests in a row that failed
Errand = _core.KvbmErrand
Batch = tuple[list[str], list[bytes], list[bytes]]  # objects; which blocks, which bundles they are


class Clearance:
    """Nothing raises StoreError: what went wrong is in the `Cleared` that is handed in."""

    def __init__(
        self,
        store: Store,
        door: _core.KvbmRemote,
        threads: Executor,
        writer: Writer,
        survey: Survey,
        left_alone: Callable[[], str],
    ) -> None:
        self._store, self._door, self._threads = store, door, threads
        self._writer, self._survey = writer, survey
        self._left_alone = left_alone
        self._row = 0  # failures, one after the other

    async def namespaces(self) -> list[bytes]:
        """Of all that have a folder in the store. Raises StoreError."""
        self._row = 0
        self._allow()
        names = await self._store.folders(layout.ROOT)
        return [found for name in names if (found := layout.fingerprint(name)) is not None]

    async def settle(self, fingerprint: bytes, keys: Iterable[bytes] | None = None) -> bool:
        """Waits for what is being sent just now of a namespace, or of some blocks; whether there
        was any. What is not, and was dropped, is not sent any more.
        """
        under_way = self._writer.under_way
        some = {block for block in under_way if block[0] == fingerprint}
        if keys is not None:
            some &= {(fingerprint, key) for key in keys}
        waited = bool(some)
        while some := some & under_way:
            await asyncio.sleep(PAUSE_S)
        return waited

    async def errands(self, errands: Sequence[Errand], cleared: Cleared) -> None:
        """Deletes what a drop of the core's left to do; here `failed` are blocks, which are known
        again.
        """
        self._row = 0
        kept = {(e.fingerprint, key, e.bundle) for e in errands for key in e.keys}
        blocks = {(fingerprint, key) for fingerprint, key, _ in kept}
        units = _units(errands)

        async def one(unit: Sequence[Errand]) -> None:
            if await self._unit(unit, cleared):
                kept.difference_update((e.fingerprint, k, e.bundle) for e in unit for k in e.keys)

        try:
            for at in range(0, len(units), AT_ONCE):
                self._allow()
                some = units[at : at + AT_ONCE]
                await asyncio.gather(*(one(unit) for unit in some))
        except StoreError as error:
            cleared.why = cleared.why or str(error)
        finally:  # also where it was broken off: nobody else deletes them
            for errand in errands:
                if any((errand.fingerprint, key, errand.bundle) in kept for key in errand.keys):
                    self._door.kept(errand)
        left = {(fingerprint, key) for fingerprint, key, _ in kept}
        cleared.failed += len(left)
        cleared.blocks += len(blocks - left)

    async def _unit(self, unit: Sequence[Errand], cleared: Cleared) -> bool:
        """Blocks that lie alone, or what is to be done about one bundle."""
        first = unit[0]
        try:
            if first.bundle is None:
                paths = [layout.block(e.fingerprint, key) for e in unit for key in e.keys]
                await self._store.delete_many(paths)
                self._deleted(len(paths), cleared)
            elif first.kind == "mark":
                await self._writer.mark(first)
                self._row = 0
            else:
                await self._writer.delete_bundle(first.fingerprint, first.bundle)
                self._deleted(1, cleared)
        except StoreError as error:
            self._failed(error, cleared)
            return False
        return True

    async def everything(self, fingerprint: bytes, cleared: Cleared) -> None:
        """Deletes all blocks of a namespace. Its description stays."""
        self._row = 0
        try:
            await self.settle(fingerprint)
            async with self._survey.lock:
                self._door.begin_listing(fingerprint)
                for _ in range(ROUNDS):
                    before = cleared.objects
                    await self._round(fingerprint, cleared)
                    if cleared.failed:
                        return
                    if cleared.objects == before:
                        break
                # What others have deleted before is known no more, either.
                loop, end = asyncio.get_running_loop(), self._door.end_listing
                await loop.run_in_executor(self._threads, end, fingerprint)
        except StoreError as error:
            cleared.why = cleared.why or str(error)

    async def _round(self, fingerprint: bytes, cleared: Cleared) -> None:
        self._allow()
        async for rows in self._store.names(layout.folder(fingerprint)):
            found = layout.listed(rows)
            await self._objects(fingerprint, found.keys, list(found.bundles), cleared)
        if cleared.failed:
            return
        # Marks go last: without them, what was dropped of a bundle would be there again.
        async for rows in self._store.names(layout.dropped(fingerprint)):
            paths = [path for path, _ in rows]
            await self._each(
                [(paths[at : at + BATCH], [], []) for at in range(0, len(paths), BATCH)],
                fingerprint, cleared,
            )  # fmt: skip

    async def _objects(
        self, fingerprint: bytes, keys: list[bytes], bundles: list[bytes], cleared: Cleared
    ) -> None:
        """Objects of blocks that lie alone, and bundles without their marks."""
        batches: list[Batch] = []
        for at in range(0, len(keys), BATCH):
            some = keys[at : at + BATCH]
            batches.append(([layout.block(fingerprint, key) for key in some], some, []))
        for at in range(0, len(bundles), BATCH):
            some = bundles[at : at + BATCH]
            batches.append(([layout.bundle(fingerprint, name) for name in some], [], some))
        await self._each(batches, fingerprint, cleared)

    async def _each(self, batches: list[Batch], fingerprint: bytes, cleared: Cleared) -> None:
        for at in range(0, len(batches), AT_ONCE):
            self._allow()
            some = batches[at : at + AT_ONCE]
            await asyncio.gather(*(self._batch(batch, fingerprint, cleared) for batch in some))

    async def _batch(self, batch: Batch, fingerprint: bytes, cleared: Cleared) -> None:
        paths, keys, bundles = batch
        try:
            await self._store.delete_many(paths)
        except StoreError as error:
            self._failed(error, cleared)
            cleared.failed += len(paths)
            return
        self._deleted(len(paths), cleared)
        if keys or bundles:
            loop, gone = asyncio.get_running_loop(), self._door.gone
            known = await loop.run_in_executor(self._threads, gone, fingerprint, keys, bundles)
            cleared.blocks += known  # of what other batches have counted meanwhile

    def _deleted(self, objects: int, cleared: Cleared) -> None:
        self._row = 0
        self._writer.counts.deleted += objects
        cleared.objects += objects

    def _failed(self, error: StoreError, cleared: Cleared) -> None:
        self._row += 1
        cleared.why = str(error)

    def _allow(self) -> None:
        """Raises StoreError where the store is left alone."""
        if why := self._left_alone():
            raise StoreError(f"the store is left alone for a while: {why}")
        if self._row >= GIVE_UP:
            raise StoreError("given up: the store refuses, or does not answer")


def _units(errands: Sequence[Errand]) -> list[list[Errand]]:
    """What is one request each, or a few: up to BATCH blocks that lie alone, a bundle."""
    alone = [errand for errand in errands if errand.bundle is None]
    units = [alone[at : at + BATCH] for at in range(0, len(alone), BATCH)]
    return units + [[errand] for errand in errands if errand.bundle is not None]
