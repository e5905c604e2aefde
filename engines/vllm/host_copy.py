"""Copies of KV cache between an engine's blocks and vLLM's host tier, where both are in RAM.

vLLM 0.32's own worker copies with a GPU only. On its CPU platform the "device" blocks are host
memory too, and a copy is a copy. Shapes: a device tensor is (blocks, page bytes), a host tensor
(chunks, page bytes x blocks per chunk) with the stride of a whole chunk, both int8.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import (
        BlockIDsLoadStoreSpec,
        CanonicalKVCaches,
        GPULoadStoreSpec,
    )
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


class HostCopy(OffloadingWorker):  # type: ignore[misc]
    """A worker of vLLM's offloading connector. A transfer is over when it was submitted."""

    def __init__(
        self, caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._device = [cache.tensor for cache in caches.tensors]
        self._host = [
            region.create_next_worker_view(cache.page_size_bytes * blocks_per_chunk).unflatten(
                1, (blocks_per_chunk, cache.page_size_bytes)
            )
            for cache in caches.tensors
        ]
        self._refs = caches.group_data_refs
        self._done: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec
    ) -> bool:
        return self._copy(job_id, src_spec, dst_spec, is_store=True)

    def submit_load(
        self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        return self._copy(job_id, dst_spec, src_spec, is_store=False)

    def _copy(
        self,
        job_id: int,
        blocks: GPULoadStoreSpec,
        chunks: BlockIDsLoadStoreSpec,
        *,
        is_store: bool,
    ) -> bool:
        began, moved = time.perf_counter(), 0
        for group, block, chunk, place in self._pairs(blocks, chunks):
            for ref in self._refs[group]:
                size = ref.page_size_bytes
                device, host = self._device[ref.tensor_idx], self._host[ref.tensor_idx]
                if is_store:
                    host[chunk, place, :size] = device[block, :size]
                else:
                    device[block, :size] = host[chunk, place, :size]
                moved += size * len(block)
        took = time.perf_counter() - began
        self._done.append(TransferResult(job_id, True, moved, took))
        return True

    def _pairs(
        self, blocks: GPULoadStoreSpec, chunks: BlockIDsLoadStoreSpec
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(group, device blocks, their chunks, their places in the chunks) per group of layers.

        A group's first block may be in the middle of its first chunk (`GPULoadStoreSpec`).
        """
        per = self._blocks_per_chunk
        block_at = chunk_at = 0
        for group, (count, first) in enumerate(
            zip(blocks.group_sizes, blocks.block_indices, strict=True)
        ):
            if not count:
                continue
            place = torch.arange(count) + first % per
            used = int(place[-1]) // per + 1
            ids = torch.from_numpy(blocks.block_ids[block_at : block_at + count]).long()
            rows = torch.from_numpy(chunks.block_ids[chunk_at : chunk_at + used]).long()
            yield group, ids, rows[place // per], place % per
            block_at, chunk_at = block_at + count, chunk_at + used

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self._device.clear()
        self._host.clear()
        self._region.cleanup()
