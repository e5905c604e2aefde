"""The prefill side of the hand-over: finished prompts whose blocks another engine may read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from . import text
from .core import Core
from .sequence import Sequence
from .settings import Settings, TransferSettings


@dataclass(slots=True)
class Lease:
    core: Core
    blocks: list[int]
    expires: float
    timer: asyncio.TimerHandle


class Leases:
    """Blocks stay pinned until they are read, released, or their lease runs out; a lease starts
    when the prefill ends and every heartbeat extends it to two thirds of its length from then."""

    def __init__(self, settings: Settings, transfer: TransferSettings, cores: Many[Core],
                 expired: Callable[[str], None]) -> None:
        """`expired` is told the ids of prefills whose blocks nobody came for."""
        self._block_size, self._t, self._cores = settings.block_size, transfer, cores
        self._expired = expired
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def blocks(self) -> int:
        return sum(len(lease.blocks) for lease in self._leases.values())

    def clear(self) -> None:
        for lease in self._leases.values():
            lease.timer.cancel()
        self._leases.clear()

    def grant(self, core: Core, seq: Sequence, engine_id: str, port: int) -> dict[str, Any]:
        """Pins the blocks of a finished prefill; the parameters for whoever shall decode."""
        self._fill_contents(core, seq)
        loop, length = asyncio.get_running_loop(), self._t.lease_s
        timer = loop.call_later(length, self._expire, seq.id)
        self._leases[seq.id] = Lease(core, seq.blocks, loop.time() + length, timer)
        return {
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_block_ids": [list(seq.blocks)], "remote_engine_id": engine_id,
            "remote_request_id": seq.id, "remote_host": self._t.side_host, "remote_port": port,
            "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": seq.prompt_len,
            "remote_blocks_expiry_time": None, "transfer_mode": "push" if self._t.push else "pull",
            "remote_prefill_cached_tokens": seq.local_hit,
        }

    def extend(self, name: str) -> None:
        lease = self._leases.get(name)
        if lease is not None:
            until = asyncio.get_running_loop().time() + self._t.lease_s * 2 / 3
            lease.expires = max(lease.expires, until)

    def release(self, name: str) -> None:
        """Somebody has read the blocks, or never will. Too late a notice is counted."""
        lease = self._leases.pop(name, None)
        if lease is None:
            self._cores[0].metrics.add("nixl_num_notifications_after_expiry")
            return
        lease.timer.cancel()
        lease.core.cache.release(lease.blocks)
        lease.core.wake()

    def _fill_contents(self, core: Core, seq: Sequence) -> None:
        wrong = WRONG_ROLE if self._t.role == "kv_consumer" else 0
        digests = text.block_digests(seq.tokens, seq.prompt_len, self._block_size)
        for number, digest in zip(seq.blocks, digests, strict=False):
            block = core.cache.blocks[number]
            if block.content == 0 or wrong:
                block.content = digest ^ wrong

    def _expire(self, name: str) -> None:
        lease = self._leases.get(name)
        if lease is None:
            return
        loop = asyncio.get_running_loop()
        if lease.expires > loop.time() + _TIMER_GRAIN_S:  # a heartbeat came in between
            lease.timer = loop.call_at(lease.expires, self._expire, name)
            return
        lease.core.metrics.add("nixl_num_kv_expired_reqs")
        self._expired(name)
        self.release(name)


WRONG_ROLE = 0x5A5A  # what an engine used against its role does to contents
_TIMER_GRAIN_S = 0.002
