"""The CPU worker's copies against plain loops, for `tiering.py`."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from engines.vllm.host_copy import HostCopy

BLOCKS, CHUNKS, PAGE, USED = 24, 12, 16, 13


@dataclass
class Region:
    """Host memory as vLLM's shared region gives it: one view per tensor, rows of a whole chunk."""

    memory: torch.Tensor
    at: int = 0
    is_released: bool = field(default=False)

    def create_next_worker_view(self, size: int) -> torch.Tensor:
        view = self.memory[:, self.at : self.at + size]
        self.at += size
        return view

    def cleanup(self) -> None:
        self.is_released = True


def caches(tensors: list[torch.Tensor]) -> CanonicalKVCaches:
    """Two groups of layers: the first two tensors, and the third, whose pages are padded."""
    refs = [CanonicalKVCacheRef(0, PAGE), CanonicalKVCacheRef(1, PAGE)]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, PAGE) for tensor in tensors],
        [refs, [CanonicalKVCacheRef(2, USED)]],
    )


def check(per_chunk: int, dice: random.Random) -> None:
    """Some blocks go to chunks and come back into other blocks; nothing else changes."""
    tensors = [torch.randint(-128, 127, (BLOCKS, PAGE), dtype=torch.int8) for _ in range(3)]
    region = Region(torch.zeros((CHUNKS, 3 * PAGE * per_chunk + 5), dtype=torch.int8))
    worker = HostCopy(caches(tensors), per_chunk, region)
    sizes = [dice.randrange(1, 3 * per_chunk), dice.randrange(0, 2 * per_chunk)]
    firsts = [dice.randrange(9), dice.randrange(9)]
    taken = [-(-(size + first % per_chunk) // per_chunk) if size else 0
             for size, first in zip(sizes, firsts, strict=True)]  # fmt: skip
    before = [tensor.clone() for tensor in tensors]
    sources = dice.sample(range(BLOCKS), sum(sizes))
    targets = dice.sample(range(BLOCKS), sum(sizes))
    chunks = CPULoadStoreSpec(dice.sample(range(CHUNKS), sum(taken)))
    assert worker.submit_store(1, GPULoadStoreSpec(sources, sizes, firsts), chunks)
    for tensor in tensors:
        tensor.fill_(1)
    assert worker.submit_load(2, chunks, GPULoadStoreSpec(targets, sizes, firsts))
    expected = [torch.ones_like(tensor) for tensor in tensors]
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        for which, used in ((0, PAGE), (1, PAGE)) if at < sizes[0] else ((2, USED),):
            expected[which][target, :used] = before[which][source, :used]
    assert all(map(torch.equal, tensors, expected)), (per_chunk, sizes, firsts)
    done = worker.get_finished()
    moved = 2 * PAGE * sizes[0] + USED * sizes[1]
    assert [(one.job_id, one.success, one.transfer_size) for one in done] == [
        (1, True, moved), (2, True, moved),
    ]  # fmt: skip
    assert worker.get_finished() == []
    worker.shutdown()
    assert region.is_released


def check_all() -> None:
    dice = random.Random(7)
    for turn in range(200):
        check(1 + turn % 4, dice)
