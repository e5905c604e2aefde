"""kvbm as vLLM's offloading spec: engines of a machine share one host tier, the daemon's arena.

`spec_name` and `spec_module_path` of `--kv-transfer-config` name it (vLLM 0.32); `kvbm doctor`
prints it. vLLM has no host memory of its own then. Rows are laid out as in vLLM's tiering, so that
what engines with `KvbmTier` stored on the daemon's disk is found, and the other way round.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from engines.vllm.arena_manager import ArenaManager
from engines.vllm.arena_memory import ArenaMemory, ArenaWorker
from engines.vllm.daemon_link import DaemonLink
from engines.vllm.host_copy import HostCopy
from engines.vllm.tier_metrics import definitions
from engines.vllm.tier_options import TierOptions

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
    from vllm.v1.kv_offload.config import OffloadingConfig

    from engines.vllm.arena_place import ArenaPlace

NAMES = frozenset(field.name for field in fields(TierOptions))


class KvbmOffloadingSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """Options in `kv_connector_extra_config`: those of `TierOptions`, and vLLM's `block_size`,
    `blocks_per_chunk`, `offload_prompt_only`. Raises ValueError where they cannot work."""

    _manager: OffloadingManager | None
    _worker: OffloadingWorker | None

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return definitions()

    def __init__(self, config: OffloadingConfig) -> None:
        # vLLM's host memory, which is not made.
        config.extra_config["cpu_bytes_to_use"] = 1
        super().__init__(config)
        said = {name: value for name, value in self.extra_config.items() if name in NAMES}
        self._options = TierOptions.of(said)
        if config.canonical_layout:
            raise ValueError("kvbm: canonical_layout is not for KvbmOffloadingSpec; remove it")

    def get_manager(self) -> OffloadingManager:
        if self._manager is None:
            link = DaemonLink(self, self._options, self.kv_bytes_per_chunk)
            self._manager = ArenaManager(link, len(self.config.groups), self._options)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        is_gpu = current_platform.is_cuda_alike() or current_platform.is_xpu()
        per_chunk, size = self.blocks_per_chunk, self.cpu_page_size_per_worker
        rank = 0 if self.replicated_layout else self.config.parallel.rank

        def memory(place: ArenaPlace) -> ArenaMemory:
            return ArenaMemory(place, self.kv_bytes_per_chunk, rank * size, size)

        def copier(arena: ArenaMemory) -> OffloadingWorker:
            if is_gpu:
                return CPUOffloadingWorker(kv_caches, per_chunk, arena.num_chunks, arena)
            return HostCopy(kv_caches, per_chunk, arena)

        if self._worker is None:
            self._worker = ArenaWorker(memory, copier)
        return self._worker
