"""What an engine is started with to use the daemon: vLLM's `--kv-transfer-config`, exactly. Pure.

The keys are vLLM 0.32's (`OffloadingConnector`, `TieringOffloadingSpec`, `kv_connector_module_path`
of `vllm/distributed/kv_transfer` and `vllm/v1/kv_offload`).
"""

from __future__ import annotations

import json
from typing import Any

TIER = ("KvbmTier", "engines.vllm.tier")
SPEC = ("KvbmOffloadingSpec", "engines.vllm.arena_spec")
CONNECTOR = ("KvbmConnector", "engines.vllm.connector")
CPU_BYTES = 8 << 30


def tier(socket: str, cpu_bytes: int = CPU_BYTES) -> dict[str, Any]:
    """Way 1: vLLM keeps the host tier, the daemon the tiers below it."""
    name, module = TIER
    return _offloading(
        "TieringOffloadingSpec",
        cpu_bytes_to_use=cpu_bytes,
        secondary_tiers=[{"type": name, "module_path": module, "socket": socket}],
    )


def connector(socket: str, cpu_bytes: int = CPU_BYTES) -> dict[str, Any]:
    """Way 2: the same by one name; on vLLM's CPU platform, too."""
    name, module = CONNECTOR
    return {
        "kv_connector": name,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": cpu_bytes, "socket": socket},
    }


def arena(socket: str) -> dict[str, Any]:
    """Way 3: the daemon's arena is the host tier, of all engines of the machine."""
    name, module = SPEC
    return _offloading(name, spec_module_path=module, socket=socket)


def _offloading(spec_name: str, **extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": spec_name, **extra},
    }


def option(config: dict[str, Any]) -> str:
    """The option as it is typed into a shell."""
    return f"--kv-transfer-config '{json.dumps(config, separators=(',', ':'))}'"
