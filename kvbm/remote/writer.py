"""Carries out what the core wants written to the store: blocks alone or in bundles, deletions, and
marks beside bundles of which single blocks were dropped.

Invariant: an object is complete when it can be seen, and is never changed afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor

from kvbm.remote import layout
from kvbm.remote.counts import Counts
from kvbm.remote.store import Store
from native import _core

DROPPED = b"dropped\n"  # some stores keep no empty objects
Block = tuple[bytes, bytes]  # namespace, key


class Writer:
    """Raises StoreError, and TimeoutError where the core does not answer."""

    def __init__(
        self, store: Store, door: _core.KvbmRemote, threads: Executor, counts: Counts
    ) -> None:
        self._store = store
        self._door = door
        self._threads = threads
        self.counts = counts
        self.under_way: set[Block] = set()  # being sent: who drops one of them waits

    async def send(self, errand: _core.KvbmErrand) -> bool:
        """False: there was nothing to send any more."""
        blocks = {(errand.fingerprint, key) for key in errand.keys}
        self.under_way |= blocks
        try:
            return await self._send(errand)
        finally:
            self.under_way -= blocks

    async def _send(self, errand: _core.KvbmErrand) -> bool:
        loop, fingerprint = asyncio.get_running_loop(), errand.fingerprint
        pack = self._door.pack
        parcels = await loop.run_in_executor(self._threads, pack, fingerprint, errand.keys)
        for name, keys, data in parcels:
            if name is None:
                await self._alone(fingerprint, keys[0], data)
            else:
                await self._bundle(fingerprint, name, keys, data)
        return bool(parcels)

    async def _alone(self, fingerprint: bytes, key: bytes, record: bytes) -> None:
        created = await self._store.create(layout.block(fingerprint, key), record)
        self._count(created, 1, len(record))
        await self.known(fingerprint, [key])

    async def _bundle(
        self, fingerprint: bytes, name: bytes, keys: Sequence[bytes], data: bytes
    ) -> None:
        created = await self._store.create(layout.bundle(fingerprint, name), data)
        if not created:
            # Who dropped some of them did so before they came again.
            marks = (layout.dropped(fingerprint, name, key) for key in keys)
            await self._store.delete(*marks)
        self._count(created, len(keys), len(data))
        self.counts.bundles += created
        self.counts.bundled += len(keys) if created else 0
        loop, size = asyncio.get_running_loop(), len(data)
        with contextlib.suppress(TimeoutError):
            bundled = self._door.bundled
            await loop.run_in_executor(self._threads, bundled, fingerprint, name, data, size)

    def _count(self, created: bool, blocks: int, size: int) -> None:
        counts = self.counts
        counts.sent += blocks if created else 0
        counts.sent_bytes += size if created else 0
        counts.deduped += 0 if created else blocks

    async def known(self, fingerprint: bytes, keys: list[bytes]) -> None:
        loop, known = asyncio.get_running_loop(), self._door.known
        with contextlib.suppress(TimeoutError):
            await loop.run_in_executor(self._threads, known, fingerprint, keys)

    async def delete(self, errand: _core.KvbmErrand) -> bool:
        name, fingerprint = errand.bundle, errand.fingerprint
        if name is None:
            await self._store.delete(layout.block(fingerprint, errand.keys[0]))
        else:
            await self.delete_bundle(fingerprint, name)
        self.counts.deleted += 1
        return True

    async def delete_bundle(self, fingerprint: bytes, name: bytes) -> None:
        """The marks go last: without them, what was dropped would be there again."""
        await self._store.delete(layout.bundle(fingerprint, name))
        async for rows in self._store.names(layout.dropped(fingerprint, name)):
            await self._store.delete(*(path for path, _ in rows))

    async def mark(self, errand: _core.KvbmErrand) -> bool:
        name = errand.bundle
        assert name is not None
        for key in errand.keys:
            await self._store.create(layout.dropped(errand.fingerprint, name, key), DROPPED)
            self.counts.deleted += 1
        return True
