"""The host tier of vLLM's offloading connector, where it is kvbm's: one arena for all engines.

vLLM 0.32's `OffloadingManager` (`kv_offload/base.py`), on the engine's scheduler thread. What lies
in the arena, on the daemon's disk or in its object store is found alike, and brought into the
arena first. Without a daemon, or one without an arena, every lookup is a miss and nothing is
stored.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
)

from engines.vllm.arena_memory import ArenaSpec
from engines.vllm.arena_seats import PENDING, ArenaSeats
from engines.vllm.block_jobs import MISS, Figures
from engines.vllm.load_gate import LoadGate, Pace
from engines.vllm.tier_metrics import grown
from engines.vllm.tier_places import allowed, source

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
    )
    from vllm.v1.kv_offload.base import LoadStoreSpec, ReqContext, ScheduleEndContext
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    from engines.vllm.daemon_link import DaemonLink
    from engines.vllm.tier_options import TierOptions

# A store that is asked for again in later steps, until it is given up.
ATTEMPTS = 64
RESULTS = {MISS: LookupResult.MISS, PENDING: LookupResult.HIT_PENDING}


class ArenaManager(OffloadingManager):  # type: ignore[misc]
    """`groups`: of layers; blocks of one group are a chain."""

    def __init__(self, link: DaemonLink, groups: int, options: TierOptions) -> None:
        self._link, self._groups, self._load_s = link, groups, options.load_s
        self._pace = Pace(options.recompute_us_per_token)
        self._seats: ArenaSeats | None = None
        # The tiers that blocks of a request came from, until it has ended.
        self._sources: dict[str, dict[bytes, int]] = {}
        self._attempts: dict[str, int] = {}
        self._shown = Figures()

    @property
    def connected(self) -> bool:
        return self._link.connected

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        if self._seats is None:
            gate = LoadGate(self._pace, self._link.block_tokens)
            self._seats = ArenaSeats(self._link.start(), gate, self._load_s)
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        if self._seats is None:
            return LookupResult.MISS
        tiers = allowed(req_context)
        found = self._seats.lookup(req_context.req_id, key, tiers, time.monotonic())
        if found <= MISS:
            return RESULTS[found]
        self._sources.setdefault(req_context.req_id, {})[key] = found
        return LookupResult.HIT

    def get_load_source(self, key: bytes, req_context: ReqContext) -> CacheHitSource:
        return source(self._sources.get(req_context.req_id, {}).get(key, MISS))

    def prepare_load(self, keys: Collection[bytes], req_context: ReqContext) -> LoadStoreSpec:
        assert self._seats is not None
        seats = self._seats.take(req_context.req_id, list(keys))
        return ArenaSpec(self._seats.place, seats)

    def complete_load(self, keys: Collection[bytes], req_context: ReqContext) -> None:
        assert self._seats is not None
        self._seats.loaded(req_context.req_id, keys)

    def prepare_store(
        self, keys: Collection[bytes], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        if self._seats is None:
            return PrepareStoreOutput([], ArenaSpec(None, []), [])
        granted = self._seats.reserve(list(keys), is_chain=self._groups == 1)
        if granted is None:
            attempts = self._attempts.get(req_context.req_id, 0) + 1
            self._attempts[req_context.req_id] = attempts
            if attempts <= ATTEMPTS:
                return None
            granted = []
        return PrepareStoreOutput(
            keys_to_store=[name for name, _ in granted],
            store_spec=ArenaSpec(self._seats.place, [seat for _, seat in granted]),
            evicted_keys=[],
        )

    def complete_store(
        self, keys: Collection[bytes], req_context: ReqContext, success: bool = True
    ) -> None:
        assert self._seats is not None
        tokens = len(keys) * self._link.block_tokens
        self._pace.computed(req_context.req_id, tokens, time.monotonic())
        self._seats.written(keys, ok=success)

    def touch(self, keys: Collection[bytes], req_context: ReqContext) -> None:
        if self._seats is not None:
            self._seats.touch(keys)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._sources.pop(req_context.req_id, None)
        self._attempts.pop(req_context.req_id, None)
        self._pace.ends(req_context.req_id)
        if self._seats is not None:
            self._seats.forget(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        if self._seats is not None:
            now = time.monotonic()
            for request in context.new_req_ids:
                self._pace.begins(request, now)
            self._seats.end_step(now)
            self._link.watch(now)

    def has_pending_work(self) -> bool:
        return self._seats is not None and self._seats.under_way

    def reset_cache(self) -> None:
        """vLLM's bookkeeping is begun anew. What the daemon holds stays, as in its other tiers."""
        if self._seats is not None:
            self._seats.reset()

    def get_stats(self) -> OffloadingConnectorStats | None:
        if self._seats is None:
            return None
        stats, self._shown = grown(self._seats.figures, self._shown)
        return stats

    def shutdown(self) -> None:
        self._link.stop()
        if self._seats is not None:
            self._seats.close()
        self._seats = None
