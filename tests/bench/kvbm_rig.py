"""A daemon core and a client with memory, in one process: the core has its own threads."""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from native import _core

SLOTS = 64
PER_JOB = 8
DEPTH = 32


def name(n: int) -> bytes:
    return hashlib.sha256(b"%d" % n).digest() + bytes(4)


class Rig:
    """`capacity` of the disk, 0 for none; `slots` of the client's memory, `per_job` blocks are
    asked for at once, `step_s` is between looks at what has ended; `options` are the core's.
    """

    def __init__(
        self,
        root: Path,
        block: int,
        capacity: int,
        *,
        slots: int = SLOTS,
        per_job: int = PER_JOB,
        step_s: float = 0.0001,
        **options: Any,
    ) -> None:
        self.block, self.slots, self.per_job, self.step_s = block, slots, per_job, step_s
        self.socket = str(root / "s")
        disk = str(root / "disk")
        self.disk = _core.KvbmDisk(disk, capacity, depth=DEPTH) if capacity else None
        self.core = _core.KvbmCore(self.socket, disk=self.disk, **options)
        self.fd = os.memfd_create("bench")
        os.ftruncate(self.fd, slots * block)
        self.memory = mmap.mmap(self.fd, slots * block)
        self.memory[:] = os.urandom(slots * block)
        self.client = self.connect()

    def connect(self) -> _core.KvbmClient:
        client = _core.KvbmClient(
            self.socket, "bench", b"{}", bytes(32), self.block, lookup_us=1_000_000
        )
        client.lend(self.fd, self.block, self.slots)
        assert client.connect(10.0), client.trouble
        return client

    def run(self, begin: Callable[..., bool], blocks: Sequence[int]) -> float:
        """Seconds until all blocks are moved."""
        free, under_way, at, job = list(range(self.slots)), {}, 0, 0
        began = time.perf_counter()
        while at < len(blocks) or under_way:
            while at < len(blocks) and len(free) >= self.per_job:
                names = [name(n) for n in blocks[at : at + self.per_job]]
                slots = [free.pop() for _ in names]
                job += 1
                if not begin(job, names, slots, deadline_us=60_000_000):
                    free += slots
                    break
                under_way[job] = slots
                at += len(names)
            for done in self.client.poll():
                assert done.ok, list(done.statuses)
                free += under_way.pop(done.job)
            time.sleep(self.step_s)
        return time.perf_counter() - began

    def stop(self) -> None:
        self.core.stop()
        self.memory.close()
        os.close(self.fd)
