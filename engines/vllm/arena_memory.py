"""The arena of kvbm's daemon as a worker of vLLM maps it, and copies between it and the device.

Slots of the arena begin at pages of 4096 bytes, so a "chunk" of vLLM is a page's number here: the
views overlap, and a slot's bytes are those of the row that begins at its page. A word per page, in
front, has the generation of the slot that begins there; another one than the scheduler was given
means that the slot is another block's now. Invariants: nothing is written to such a slot, and no
engine goes on with bytes that were read from one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.host_register import host_unregister

from engines.vllm.arena_place import ArenaPlace, Seat

PAGE = 4096
# Of arenas: that of the daemon that is there, and that of the one before.
MAPPED_MAX = 2


class ArenaSpec(CPULoadStoreSpec):  # type: ignore[misc]
    """Seats that a worker copies from or to. `chunk_ids`: their pages."""

    def __init__(self, place: ArenaPlace | None, seats: Sequence[Seat]) -> None:
        super().__init__([seat.page for seat in seats])
        self.place = place
        self.generations = np.array([seat.generation for seat in seats], dtype=np.uint64)


class ArenaMemory:
    """One arena. Looks like vLLM 0.32's `SharedOffloadRegion` to its workers: `rank_bytes` of every
    row of `row_bytes`, from `rank_at` on, are this worker's. Raises OSError where it is gone."""

    def __init__(self, place: ArenaPlace, row_bytes: int, rank_at: int, rank_bytes: int) -> None:
        fd = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_ino != place.inode:
                raise FileNotFoundError(f"kvbm: {place.path} is not the arena any more")
            self.mmap_obj = mmap.mmap(fd, place.size)
        finally:
            os.close(fd)
        self.total_size_bytes = place.size
        self.num_chunks = (place.size - row_bytes) // PAGE + 1
        self.is_pinned = False
        self.pinned_addresses: list[int] = []
        self._row_stride = PAGE
        self._at, self._end = rank_at, rank_at + rank_bytes
        self._base: torch.Tensor | None = torch.frombuffer(
            memoryview(self.mmap_obj), dtype=torch.int8
        )
        words = memoryview(self.mmap_obj)[: place.size // PAGE * 8]
        self._generations: np.ndarray | None = np.frombuffer(words, dtype=np.uint64)

    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        """(pages, bytes) of the next tensor, int8."""
        assert self._base is not None
        assert self._at + tensor_page_size <= self._end
        shape = (self.num_chunks, tensor_page_size)
        view = torch.as_strided(self._base, shape, (PAGE, 1), storage_offset=self._at)
        self._at += tensor_page_size
        return view

    def are_valid(self, spec: ArenaSpec) -> np.ndarray:
        """Per seat, whether it still is the block's."""
        assert self._generations is not None
        valid: np.ndarray = self._generations[spec.chunk_ids] == spec.generations
        return valid

    def cleanup(self) -> None:
        if self.is_pinned and self._base is not None:
            for address in reversed(self.pinned_addresses or [self._base.data_ptr()]):
                host_unregister(address)
        self._base = self._generations = None
        # Views of it may be alive still; the mapping goes with the last of them.
        with contextlib.suppress(BufferError):
            self.mmap_obj.close()


class ArenaWorker(OffloadingWorker):  # type: ignore[misc]
    """`open_memory` maps an arena; `make` makes the worker that copies there."""

    def __init__(
        self,
        open_memory: Callable[[ArenaPlace], ArenaMemory],
        make: Callable[[ArenaMemory], OffloadingWorker],
    ) -> None:
        self._open, self._make = open_memory, make
        self._mapped: dict[int, tuple[ArenaMemory, OffloadingWorker]] = {}
        self._loads: dict[int, ArenaSpec] = {}
        self._skipped: list[TransferResult] = []

    def _at(self, place: ArenaPlace) -> tuple[ArenaMemory, OffloadingWorker]:
        if place.epoch not in self._mapped:
            while len(self._mapped) >= MAPPED_MAX:
                _, oldest = self._mapped.pop(next(iter(self._mapped)))
                oldest.shutdown()
            memory = self._open(place)
            self._mapped[place.epoch] = memory, self._make(memory)
        return self._mapped[place.epoch]

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: ArenaSpec
    ) -> bool:
        """Skipped where a seat was taken away, after a connection that was lost for long: the
        daemon refuses to commit it then."""
        assert dst_spec.place is not None
        try:
            memory, worker = self._at(dst_spec.place)
        except OSError:
            memory, worker = None, None
        if memory is None or worker is None or not memory.are_valid(dst_spec).all():
            self._skipped.append(TransferResult(job_id, True, 0, 0.0))
            return True
        return bool(worker.submit_store(job_id, src_spec, dst_spec))

    def submit_load(self, job_id: int, src_spec: ArenaSpec, dst_spec: GPULoadStoreSpec) -> bool:
        assert src_spec.place is not None
        _, worker = self._at(src_spec.place)
        self._loads[job_id] = src_spec
        return bool(worker.submit_load(job_id, src_spec, dst_spec))

    def get_finished(self) -> list[TransferResult]:
        done, self._skipped = self._skipped, []
        for memory, worker in self._mapped.values():
            for result in worker.get_finished():
                spec = self._loads.pop(result.job_id, None)
                if spec is not None and not memory.are_valid(spec).all():
                    raise RuntimeError(
                        "kvbm: the arena's blocks went while they were copied, which vLLM 0.32 "
                        "cannot be told; the daemon was not to be reached for 10 s"
                    )
                done.append(result)
        return done

    def wait(self, job_ids: set[int]) -> None:
        for _, worker in self._mapped.values():
            worker.wait(job_ids)

    def shutdown(self) -> None:
        for _, worker in self._mapped.values():
            worker.shutdown()
        self._mapped.clear()
