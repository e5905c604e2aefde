"""vLLM's tiering with a worker for its CPU platform, too.

An out-of-tree `OffloadingSpec`: `spec_name` and `spec_module_path` of `--kv-transfer-config` name
it. On a GPU it is vLLM's own `TieringOffloadingSpec`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from engines.vllm.host_copy import HostCopy

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker


class KvbmHostSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """Raises ValueError for `canonical_layout` on the CPU, which only vLLM's own worker writes."""

    _worker: OffloadingWorker | None

    def get_manager(self) -> OffloadingManager:
        """Takes the name of the host memory away, which an engine that is killed would leave.

        vLLM 0.32 makes its scheduler when all workers have mapped it. One that comes later would
        make another one for itself; so the name stays where no worker was first.
        """
        manager = super().get_manager()
        region = self._scheduler_mmap
        if region is not None and not region._creator:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(region.mmap_path)
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if current_platform.is_cuda_alike() or current_platform.is_xpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            if self.config.canonical_layout:
                raise ValueError("kvbm: canonical_layout needs a GPU; remove it")
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            # The name is taken away by the scheduler's half.
            region._creator = False
            self._worker = HostCopy(kv_caches, self.blocks_per_chunk, region)
        return self._worker
