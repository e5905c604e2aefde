"""kvbm's tiers in vLLM's words: a request's `kv_load_tiers`, and where its KV came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_offload.base import Locality, Medium, TierFilter
from vllm.v1.metrics.cache_hit_source import CacheHitSource

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import ReqContext

HOST, DISK, REMOTE = 1, 2, 3
PLACES = {
    HOST: (Medium.CPU, Locality.LOCAL),
    DISK: (Medium.STORAGE, Locality.LOCAL),
    REMOTE: (Medium.STORAGE, Locality.REMOTE),
}
SOURCES = {HOST: CacheHitSource.HOST, DISK: CacheHitSource.DISK}
ALL = frozenset(PLACES)


def allowed(request: ReqContext) -> frozenset[int]:
    """The tiers that a request may be loaded from."""
    wanted = request.load_tier_filter
    if wanted is TierFilter.ALL:
        return ALL
    return frozenset(tier for tier, place in PLACES.items() if wanted.allows(*place))


def source(tier: int) -> CacheHitSource:
    return SOURCES.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)
