"""What vLLM's /metrics has of kvbm, beside vLLM's own of its tiers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import OffloadingCounterMetadata

from engines.vllm.block_jobs import Figures

SAID = {
    "stored": "Blocks that kvbm has taken.",
    "loaded": "Blocks that came from kvbm.",
    "shed": "Blocks whose store was not begun: no daemon, or too many under way.",
    "failed": "Blocks that were found and did not come: they are computed.",
    "gated": "Blocks that were found, and computed since loading them would take longer.",
}


def definitions() -> dict[str, Any]:
    return {metric(name): OffloadingCounterMetadata(said) for name, said in SAID.items()}


def metric(name: str) -> str:
    return f"vllm:kv_offload_kvbm_{name}_blocks"


def grown(now: Figures, shown: Figures) -> tuple[OffloadingConnectorStats | None, Figures]:
    """What to add to vLLM's counters since `shown`, and what is shown then."""
    if now == shown:
        return None, shown
    stats = OffloadingConnectorStats()
    for name in (field.name for field in fields(Figures)):
        if more := getattr(now, name) - getattr(shown, name):
            stats.increase_counter(metric(name), more)
    return stats, replace(now)
