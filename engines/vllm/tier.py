"""kvbm as a secondary tier of vLLM's offloading connector (vLLM 0.32, `tiering/base.py`).

`--kv-transfer-config` names it in `secondary_tiers`; `kvbm doctor` prints it. vLLM keeps the host
tier and its memory, which the daemon borrows: blocks go between there and the daemon's tiers.

Invariant: everything here runs on the engine's scheduler thread and neither waits nor raises
because of the daemon. Without one, every lookup is a miss and every store is dropped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    RequestOffloadingContext,
    TierFilter,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from engines.vllm.block_jobs import BlockJobs, Figures
from engines.vllm.kv_namespace import KvFormat, LayerGroup, Topology, probe
from engines.vllm.tier_options import TierOptions
from engines.vllm.weights import weights_of
from native import _core

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec, ReqContext, ScheduleEndContext
    from vllm.v1.kv_offload.tiering.base import TransferJob

# A name below vLLM's own, which alone has handlers in an engine.
LOG = logging.getLogger("vllm.kvbm")
SAY_S = 10.0
# The first request waits so long for a daemon whose socket is there: what it could load is found
# then, after a restart of the engine.
FIRST_S = 0.05
# An engine without requests asks nothing; a daemon that came back is looked for all the same.
LOOK_S = 0.25
BLOCK_MAX = 64 << 20
ENGINE_MAX = 256
# vLLM's /metrics has these beside its own of every tier.
METRICS = {
    "stored": "Blocks that kvbm has taken.",
    "loaded": "Blocks that came from kvbm.",
    "shed": "Blocks whose store was not begun: no daemon, or too many under way.",
    "failed": "Blocks that were found and did not come: they are computed.",
}
PLACES = {2: (Medium.STORAGE, Locality.LOCAL), 3: (Medium.STORAGE, Locality.REMOTE)}


class KvbmTier(SecondaryTierManager):  # type: ignore[misc]
    """Options in the tier's configuration: those of `TierOptions`.

    Raises ValueError where the configuration cannot work, at the engine's start.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._options = TierOptions.of(options)
        self._token = self._options.token()
        if "NONE_HASH" not in kv_cache_utils.__annotations__:
            raise ValueError(unknown_version("the seed of its block hashes"))
        row = self.block_size_bytes
        self._slots = primary_kv_view.nbytes // row
        if row > BLOCK_MAX:
            raise ValueError(
                f"kvbm: a chunk of KV cache has {row} bytes, at most {BLOCK_MAX} are possible; "
                "set a smaller `block_size` in kv_connector_extra_config"
            )
        self._format = kv_format(offloading_spec, row, self._options)
        self._region = region(offloading_spec, self._slots * row)
        self._jobs: BlockJobs | None = None
        self._client: _core.KvbmClient | None = None
        self._shown = Figures()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="kvbm-keeper", daemon=True)
        self._told: bool | None = None
        self._told_s = -SAY_S

    def _start(self) -> None:
        """Connects. Not before the first request: vLLM makes its tiers before it seeds its block
        hashes."""
        options, config = self._options, self._offloading_spec.config
        tokens = max(group.tokens for group in self._format.groups)
        recompute_us = options.recompute_us_per_token * tokens * self._format.blocks_per_chunk
        client = _core.KvbmClient(
            options.socket,
            config.engine_id[:ENGINE_MAX],
            self._format.descriptor(),
            probe(kv_cache_utils.NONE_HASH),
            self.block_size_bytes,
            recompute_us=min(int(recompute_us), 2**32 - 1),
            token=self._token,
        )
        client.lend(self._region, self.block_size_bytes, self._slots)
        if os.path.exists(options.socket):
            client.connect(FIRST_S)
        self._client = client
        self._jobs = BlockJobs(client, self._slots, options.load_s, options.store_s)
        self._keeper.start()

    def _keep(self) -> None:
        client = self._client
        assert client is not None
        while not self._over.wait(LOOK_S):
            if not client.connected and os.path.exists(self._options.socket):
                client.connect(FIRST_S)

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.connected

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        if self._jobs is None:
            return LookupResult.MISS
        tier = self._jobs.lookup(key, time.monotonic())
        if tier == 0:
            return LookupResult.MISS
        wanted = req_context.load_tier_filter
        if wanted is not TierFilter.ALL and not wanted.allows(*PLACES[tier]):
            return LookupResult.MISS
        return LookupResult.HIT

    def submit_store(self, job_metadata: TransferJob) -> None:
        assert self._jobs is not None
        job = job_metadata
        self._jobs.store(job.job_id, list(job.keys), job.chunk_ids.tolist())

    def submit_load(self, job_metadata: TransferJob) -> None:
        assert self._jobs is not None
        job = job_metadata
        self._jobs.load(job.job_id, list(job.keys), job.chunk_ids.tolist(), time.monotonic())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        if self._jobs is None:
            return ()
        return [
            JobResult(
                job_id=ended.job,
                success=ended.ok,
                successful_keys=ended.good if ended.is_load and not ended.ok else None,
                transfer_time=ended.spent_s,
                transfer_bytes=ended.moved_bytes,
            )
            for ended in self._jobs.finished(time.monotonic())
        ]

    def has_pending_work(self) -> bool:
        return self._jobs is not None and self._jobs.under_way

    def touch(self, keys: Collection[bytes], req_context: ReqContext) -> None:
        if self._jobs is not None:
            self._jobs.touch(list(keys))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        if self._jobs is None:
            self._start()
        return RequestOffloadingContext()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        if self._jobs is not None:
            self._jobs.step()
            self._watch(time.monotonic())

    def _watch(self, now: float) -> None:
        """Says when the daemon comes or goes, at most every 10 s."""
        assert self._client is not None
        is_there = self._client.connected
        if is_there == self._told or now < self._told_s + SAY_S:
            return
        self._told, self._told_s = is_there, now
        if not is_there:
            LOG.warning("kvbm: %s: computing what it may hold", self._client.trouble or "no answer")
            return
        LOG.info("kvbm: connected to %s", self._options.socket)
        if self._client.differing_probes:
            LOG.warning(
                "kvbm: other engines of this model hash blocks with another seed, nothing is "
                "shared with them; start all with one PYTHONHASHSEED, or with a sha256 hash"
            )

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return {metric(name): OffloadingCounterMetadata(said) for name, said in METRICS.items()}

    def get_stats(self) -> OffloadingConnectorStats | None:
        if self._jobs is None or self._jobs.figures == self._shown:
            return None
        stats, now = OffloadingConnectorStats(), replace(self._jobs.figures)
        for name in METRICS:
            if grown := getattr(now, name) - getattr(self._shown, name):
                stats.increase_counter(metric(name), grown)
        self._shown = now
        return stats

    def drain_jobs(self) -> None:
        if self._jobs is not None:
            self._jobs.drain()

    def shutdown(self) -> None:
        self._over.set()
        if self._jobs is not None:
            self._keeper.join()
            self._jobs.drain(cancel=True)
        self._jobs = self._client = None


def metric(name: str) -> str:
    return f"vllm:kv_offload_kvbm_{name}_blocks"


def region(spec: OffloadingSpec, size: int) -> int:
    """The descriptor of vLLM's host memory, which stays vLLM's.

    vLLM 0.32 has no public way to it. Raises ValueError where it is not what it should be.
    """
    fd = getattr(getattr(spec, "_scheduler_mmap", None), "fd", None)
    if fd is None or os.fstat(fd).st_size < size:
        raise ValueError(unknown_version("its host memory"))
    return int(fd)


def unknown_version(what: str) -> str:
    return (
        f"kvbm: vLLM {vllm.__version__} keeps {what} where this does not find it; the versions "
        "that are known to work are in docs/kvbm.md"
    )


def kv_format(spec: OffloadingSpec, row: int, options: TierOptions) -> KvFormat:
    """What of vLLM's configuration makes blocks interchangeable."""
    config, parallel = spec.config, spec.config.parallel
    canonical = ""
    if config.canonical_layout:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import canonical_mapping

        canonical = canonical_mapping.canonical_format_id(config.kv_cache_layout)
    is_any = parallel.is_parallelism_agnostic or config.replicated_layout
    topology = Topology(
        parallel.world_size,
        parallel.tp_size,
        parallel.pp_size,
        parallel.pcp_size,
        parallel.dcp_size,
    )
    return KvFormat(
        engine="vllm " + ".".join(vllm.__version__.split(".")[:2]),
        model=config.model.name,
        dtype=config.model.dtype,
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        block_bytes=row,
        groups=tuple(LayerGroup(g.tokens_per_block, tuple(g.layer_names)) for g in config.groups),
        topology=None if is_any else topology,
        layout=config.kv_cache_layout or "",
        canonical=canonical,
        replicated=config.replicated_layout,
        weights=options.weights or weights_of(config.model.name),
        salt=options.salt,
    )
