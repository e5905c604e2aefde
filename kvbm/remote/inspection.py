"""Reads all that lies in the store of a namespace and verifies it, whoever sent it.

Invariants: at most `at_once` objects are held and asked for, beside the errands and not in their
place; what is bad is deleted, and no hit any more; nothing is asked of a store that is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from kvbm.logs import log
from kvbm.remote import StoreError, layout
from kvbm.remote.counts import Counts
from kvbm.remote.outcome import Inspected
from kvbm.remote.store import Store
from kvbm.remote.writer import DROPPED, Writer
from native import _core

GIVE_UP = 3  # objects in a row that could not be read
LOGGED_MAX = 8  # damaged objects of a namespace that the log names
PAUSE_S = 0.05


class Inspection:
    """Nothing raises StoreError: what went wrong is in the `Inspected` that is handed in."""

    def __init__(
        self,
        store: Store,
        door: _core.KvbmRemote,
        threads: Executor,
        counts: Counts,
        at_once: int,
        left_alone: Callable[[], str],
    ) -> None:
        self._store, self._door, self._threads, self._counts = store, door, threads, counts
        self._writer = Writer(store, door, threads, counts)
        self._at_once = at_once
        self._left_alone = left_alone
        self._row = 0  # failures, one after the other
        self._rate, self._began_s = 0, 0.0

    async def namespace(self, fingerprint: bytes, rate: int, found: Inspected) -> None:
        """`rate`: bytes a second, 0 for no limit."""
        self._row, self._rate = 0, rate
        self._began_s = time.monotonic() - (found.size / rate if rate else 0)
        try:
            async for rows in self._store.names(layout.folder(fingerprint)):
                listed = layout.listed(rows)
                names = [(key, False) for key in listed.keys]
                names += [(name, True) for name in listed.bundles]
                for at in range(0, len(names), self._at_once):
                    await self._allow(found)
                    some = names[at : at + self._at_once]
                    await asyncio.gather(*(self._object(fingerprint, *n, found) for n in some))
        except StoreError as error:
            found.why = found.why or str(error)

    async def _object(
        self, fingerprint: bytes, name: bytes, is_bundle: bool, found: Inspected
    ) -> None:
        path = (layout.bundle if is_bundle else layout.block)(fingerprint, name)
        try:
            data = await self._store.get(path)
            self._row = 0
            if data is None:  # it was deleted meanwhile
                return
            loop, check = asyncio.get_running_loop(), _core.kvbm_check
            checked = await loop.run_in_executor(
                self._threads, check, fingerprint, name, is_bundle, data
            )
            found.size += len(data)
            if checked is None:
                found.checked += 1
                await self._bad_bundle(fingerprint, name, found)
                return
            found.checked += checked[0]
            if checked[1]:
                await self._bad(fingerprint, name if is_bundle else None, checked[1], found)
        except StoreError as error:
            self._row += 1
            found.failed += 1
            found.why = str(error)

    async def _bad(
        self, fingerprint: bytes, name: bytes | None, keys: list[bytes], found: Inspected
    ) -> None:
        if name is not None:
            dropped = await self._dropped(fingerprint, name)
            keys = [key for key in keys if key not in dropped]
        if not keys:
            return
        self._tell(fingerprint, keys, found)
        # Whether or not it can be deleted: it is no hit any more.
        self._door.damaged(fingerprint, name, keys)
        if name is None:
            await self._store.delete(layout.block(fingerprint, keys[0]))
        else:
            for key in keys:
                await self._store.create(layout.dropped(fingerprint, name, key), DROPPED)
        self._counts.deleted += len(keys)

    async def _bad_bundle(self, fingerprint: bytes, name: bytes, found: Inspected) -> None:
        """One that does not say what is in it; what was known to be is lost."""
        loop, gone = asyncio.get_running_loop(), self._door.gone
        blocks = await loop.run_in_executor(self._threads, gone, fingerprint, [], [name])
        found.bad += max(1, blocks)
        self._counts.bad_bundles += 1
        log.warning("remote: a bundle is damaged: %s %s", fingerprint.hex(), name.hex())
        await self._writer.delete_bundle(fingerprint, name)
        self._counts.deleted += 1

    async def _dropped(self, fingerprint: bytes, name: bytes) -> set[bytes]:
        """Blocks of a bundle that are none any more."""
        keys: set[bytes] = set()
        async for rows in self._store.names(layout.dropped(fingerprint, name)):
            keys.update(layout.listed(rows).dropped.get(name, []))
        return keys

    def _tell(self, fingerprint: bytes, keys: list[bytes], found: Inspected) -> None:
        room = max(0, LOGGED_MAX - found.bad)
        found.found_bad(fingerprint, keys)
        for key in keys[:room]:
            log.warning("remote: a block is damaged: %s %s", fingerprint.hex(), key.hex())

    async def _allow(self, found: Inspected) -> None:
        """Waits for the rate. Raises StoreError where the store is left alone."""
        while True:
            if why := self._left_alone():
                raise StoreError(f"the store is left alone for a while: {why}")
            if self._row >= GIVE_UP:
                raise StoreError("given up: the store refuses, or does not answer")
            allowed = (time.monotonic() - self._began_s) * self._rate
            if not self._rate or found.size <= allowed:
                return
            await asyncio.sleep(PAUSE_S)
