"""Learns what lies in the store, whoever sent it, by listing a namespace's objects.

Invariants: a bundle's index is read once, from its own first page; nothing else says what is in it.
What a whole listing does not name is no hit any more.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from kvbm.logs import Seldom
from kvbm.remote import layout
from kvbm.remote.counts import Counts
from kvbm.remote.store import Store
from kvbm.remote.writer import Writer
from native import _core

PAGE = 4096
AT_ONCE = 8  # indices of bundles that are read at a time


class Survey:
    """Raises StoreError, and TimeoutError where the core does not answer."""

    def __init__(
        self, store: Store, door: _core.KvbmRemote, threads: Executor, counts: Counts
    ) -> None:
        self._store = store
        self._door = door
        self._threads = threads
        self._counts = counts
        self._writer = Writer(store, door, threads, counts)
        self._seldom = Seldom()
        self.lock = asyncio.Lock()  # who deletes much keeps listings from bringing it back

    async def refresh(self, fingerprint: bytes) -> None:
        async with self.lock:
            self._door.begin_listing(fingerprint)
            await self._list(fingerprint)
            loop, end = asyncio.get_running_loop(), self._door.end_listing
            await loop.run_in_executor(self._threads, end, fingerprint)

    async def _list(self, fingerprint: bytes) -> None:
        async for rows in self._store.names(layout.folder(fingerprint)):
            found = layout.listed(rows)
            self._counts.listed += len(found.keys)
            await self._writer.known(fingerprint, found.keys)
            await self._bundles(fingerprint, found.bundles)
        # When all bundles are known.
        async for rows in self._store.names(layout.dropped(fingerprint)):
            for name, keys in layout.listed(rows).dropped.items():
                self._door.dropped(fingerprint, name, keys)

    async def _bundles(self, fingerprint: bytes, sizes: dict[bytes, int]) -> None:
        if not sizes:
            return
        loop, unknown = asyncio.get_running_loop(), self._door.unknown
        names = await loop.run_in_executor(self._threads, unknown, fingerprint, list(sizes))
        for at in range(0, len(names), AT_ONCE):
            some = names[at : at + AT_ONCE]
            await asyncio.gather(*(self._index(fingerprint, name, sizes[name]) for name in some))

    async def _index(self, fingerprint: bytes, name: bytes, size: int) -> None:
        page = await self._store.get_part(layout.bundle(fingerprint, name), 0, PAGE)
        if page is None:  # it was deleted meanwhile
            return
        loop, bundled = asyncio.get_running_loop(), self._door.bundled
        news = await loop.run_in_executor(self._threads, bundled, fingerprint, name, page, size)
        self._counts.listed += max(0, news)
        if news < 0:
            self._counts.bad_bundles += 1
            self._seldom.warn("damaged", "remote: a damaged bundle was deleted")
            await self._writer.delete_bundle(fingerprint, name)
