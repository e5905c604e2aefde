"""An engine as kvbm sees one: a client, memory that it lends, blocks that can be told apart."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Sequence
from types import TracebackType

from harness.waiting import until

from native import _core

BLOCK = 64 * 1024
SLOTS = 32
DESCRIPTOR = b'{"model":"m","dtype":"float16"}'
PROBE = hashlib.sha256(b"probe").digest()


def name(n: int, group: int = 0) -> bytes:
    """A block's name as vLLM makes it: a hash and a big-endian group."""
    return hashlib.sha256(b"block %d" % n).digest() + group.to_bytes(4, "big")


def payload(n: int, size: int = BLOCK) -> bytes:
    """The bytes of block `n`: different in every block, and everywhere in it."""
    return hashlib.shake_128(b"payload %d" % n).digest(size)


class Engine:
    """A client with `SLOTS` slots of memory. Use as a context manager."""

    def __init__(self, socket: str, probe: bytes = PROBE, lookup_us: int = 500_000) -> None:
        self.fd = os.memfd_create("region")
        os.ftruncate(self.fd, BLOCK * SLOTS)
        self.memory = mmap.mmap(self.fd, BLOCK * SLOTS)
        self.client = _core.KvbmClient(
            socket, "engine", DESCRIPTOR, probe, BLOCK, lookup_us=lookup_us
        )
        self.client.lend(self.fd, BLOCK, SLOTS)
        self.jobs = itertools.count(1)
        self.done: dict[int, _core.KvbmDone] = {}

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.memory.close()
        os.close(self.fd)

    def up(self) -> Engine:
        assert self.client.connect(20.0), self.client.trouble
        return self

    def fill(self, slot: int, n: int) -> None:
        self.memory[slot * BLOCK : (slot + 1) * BLOCK] = payload(n)

    def holds(self, slot: int, n: int) -> bool:
        return self.memory[slot * BLOCK : (slot + 1) * BLOCK] == payload(n)

    def collect(self) -> None:
        self.done.update((done.job, done) for done in self.client.poll())

    def end_of(self, job: int) -> _core.KvbmDone:
        def ended() -> bool:
            self.collect()
            return job in self.done

        until(ended, f"the end of job {job}", 20.0)
        return self.done.pop(job)

    def try_store(self, blocks: Sequence[int]) -> _core.KvbmDone | None:
        """Stores blocks from slots 0, 1, ... and waits for the end; None: it was not begun."""
        for slot, n in enumerate(blocks):
            self.fill(slot, n)
        job = next(self.jobs)
        begun = self.client.store(job, [name(n) for n in blocks], list(range(len(blocks))))
        return self.end_of(job) if begun else None

    def try_load(self, blocks: Sequence[int]) -> _core.KvbmDone | None:
        """Loads blocks into slots 0, 1, ... and waits for the end; None: it was not begun."""
        job = next(self.jobs)
        begun = self.client.load(job, [name(n) for n in blocks], list(range(len(blocks))))
        return self.end_of(job) if begun else None

    def store(self, blocks: Sequence[int]) -> _core.KvbmDone:
        done = self.try_store(blocks)
        assert done is not None, self.client.trouble
        return done

    def load(self, blocks: Sequence[int]) -> _core.KvbmDone:
        done = self.try_load(blocks)
        assert done is not None, self.client.trouble
        return done

    def lookup(self, blocks: Sequence[int]) -> list[int]:
        return list(self.client.lookup([name(n) for n in blocks]))
