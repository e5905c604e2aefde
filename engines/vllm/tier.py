"""kvbm as a secondary tier of vLLM's offloading connector (vLLM 0.32, `tiering/base.py`).

`--kv-transfer-config` names it in `secondary_tiers`; `kvbm doctor` prints it. vLLM keeps the host
tier and its memory, which the daemon borrows: blocks go between there and the daemon's tiers.

Invariant: everything here runs on the engine's scheduler thread and neither waits nor raises
because of the daemon. Without one, every lookup is a miss and every store is dropped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    RequestOffloadingContext,
    TierFilter,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from engines.vllm.block_jobs import BlockJobs, Figures
from engines.vllm.daemon_link import DaemonLink, unknown_version
from engines.vllm.load_gate import LoadGate, Pace
from engines.vllm.tier_metrics import definitions, grown
from engines.vllm.tier_options import TierOptions
from engines.vllm.tier_places import PLACES

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
    )
    from vllm.v1.kv_offload.base import OffloadingSpec, ReqContext, ScheduleEndContext
    from vllm.v1.kv_offload.tiering.base import TransferJob


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
        said = TierOptions.of(options)
        self._load_s, self._store_s = said.load_s, said.store_s
        row = self.block_size_bytes
        self._slots = primary_kv_view.nbytes // row
        self._link = DaemonLink(offloading_spec, said, row)
        self._region = region(offloading_spec, self._slots * row)
        self._jobs: BlockJobs | None = None
        self._pace = Pace(said.recompute_us_per_token)
        self._shown = Figures()

    def _start(self) -> None:
        client = self._link.start(self._region, self._slots)
        gate = LoadGate(self._pace, self._link.block_tokens)
        self._jobs = BlockJobs(client, self._slots, gate, self._load_s, self._store_s)

    @property
    def connected(self) -> bool:
        return self._link.connected

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
        tokens = len(job.keys) * self._link.block_tokens
        self._pace.computed(job.req_context.req_id, tokens, time.monotonic())
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

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._pace.ends(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        if self._jobs is not None:
            now = time.monotonic()
            for request in context.new_req_ids:
                self._pace.begins(request, now)
            self._jobs.step()
            self._link.watch(now)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return definitions()

    def get_stats(self) -> OffloadingConnectorStats | None:
        if self._jobs is None:
            return None
        stats, self._shown = grown(self._jobs.figures, self._shown)
        return stats

    def drain_jobs(self) -> None:
        if self._jobs is not None:
            self._jobs.drain()

    def shutdown(self) -> None:
        self._link.stop()
        if self._jobs is not None:
            self._jobs.drain(cancel=True)
        self._jobs = None


def region(spec: OffloadingSpec, size: int) -> int:
    """The descriptor of vLLM's host memory, which stays vLLM's.

    vLLM 0.32 has no public way to it. Raises ValueError where it is not what it should be.
    """
    fd = getattr(getattr(spec, "_scheduler_mmap", None), "fd", None)
    if fd is None or os.fstat(fd).st_size < size:
        raise ValueError(unknown_version("its host memory"))
    return int(fd)
