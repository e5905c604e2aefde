"""kvbm as a KV connector of vLLM: two lines of configuration, and it works on the CPU.

vLLM's offloading connector (0.32, `offloading_connector.py`), told what it needs to use kvbm: the
engine's own host memory as the first tier, the daemon's tiers below. What
`kv_connector_extra_config` says of that connector's own options is kept.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from engines.vllm.tier_options import TierOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
    from vllm.v1.kv_cache_interface import KVCacheConfig

CPU_BYTES = 1 << 30


class KvbmConnector(OffloadingConnector):  # type: ignore[misc]
    """Options in `kv_connector_extra_config`: those of `TierOptions`, `cpu_bytes_to_use` (1 GiB),
    and those of vLLM's offloading connector."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        fill_in(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, *more: Any) -> KVConnectorPromMetrics:
        # In the API server's process, where no connector was made.
        fill_in(vllm_config)
        return super().build_prom_metrics(vllm_config, *more)


# MultiConnector of vLLM 0.32 looks for its parts' statistics by their names alone, and an engine
# whose part is not found by its name ends with the first statistics.
with contextlib.suppress(ValueError):  # it is registered already
    KVConnectorFactory.register_connector("KvbmConnector", __name__, "KvbmConnector")


def fill_in(vllm_config: VllmConfig) -> None:
    transfer = vllm_config.kv_transfer_config
    transfer.kv_connector_extra_config = offloading(transfer.kv_connector_extra_config or {})


def offloading(said: dict[str, Any]) -> dict[str, Any]:
    """The options of vLLM's offloading connector that come of ours; of its own, themselves."""
    if "secondary_tiers" in said:
        return said
    ours = {field.name for field in fields(TierOptions)}
    tier = {name: value for name, value in said.items() if name in ours}
    rest = {name: value for name, value in said.items() if name not in ours}
    return {
        "spec_name": "KvbmHostSpec",
        "spec_module_path": "engines.vllm.host_spec",
        "cpu_bytes_to_use": CPU_BYTES,
        **rest,
        "secondary_tiers": [{"type": "KvbmTier", "module_path": "engines.vllm.tier", **tier}],
    }
