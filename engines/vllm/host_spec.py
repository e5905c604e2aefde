"""vLLM's tiering with a worker for its CPU platform, too.

An out-of-tree `OffloadingSpec`: `spec_name` and `spec_module_path` of `--kv-transfer-config` name
it. On a GPU it is vLLM's own `TieringOffloadingSpec`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from engines.vllm.host_copy import HostCopy

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker


class KvbmHostSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """Raises ValueError for `canonical_layout` on the CPU, which only vLLM's own worker writes."""

    _worker: OffloadingWorker | None

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
            self._worker = HostCopy(kv_caches, self.blocks_per_chunk, region)
        return self._worker
