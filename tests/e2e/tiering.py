"""vLLM's real tiering manager without a model: a program for the vLLM environment's Python.

Plays the worker: writes blocks into the host memory that the manager gives it, and compares what
comes back. One JSON object per line on stdin is an order, one on stdout its outcome.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import copies
import numpy as np
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload import config as kv
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    make_offload_key,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from engines.vllm import connector

END = (LookupResult.HIT, LookupResult.MISS)


def key(block: int) -> bytes:
    return make_offload_key(hashlib.sha256(b"block %d" % block).digest(), 0)


class Engine:
    """One manager with its tier, as an engine would make it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.size = int(order["bytes"])
        self.name = str(order["engine"])
        layers = kv.OffloadingGroupConfig(16, ("l0", "l1"), 0)
        extra = {
            "cpu_bytes_to_use": order["chunks"] * self.size,
            "secondary_tiers": [order["tier"]],
        }
        config = kv.OffloadingConfig(
            groups=(layers,),
            worker_kv_bytes_per_block=self.size,
            enable_kv_cache_events=False,
            extra_config=extra,
            engine_id=self.name,
            model=kv.OffloadingModelConfig(order.get("model", "m/x"), order.get("dtype", "half")),
            cache=kv.OffloadingCacheConfig(16, 1),
            parallel=kv.OffloadingParallelConfig(
                0, order.get("tp", 1), order.get("tp", 1), 1, 1, 1, 0, 1, None, False
            ),
        )
        self.manager = TieringOffloadingSpec(config).get_manager()
        view = self.manager.primary_tier.get_kv_memoryview()
        self.memory = np.asarray(view).view(np.uint8)
        self.requests = 0
        self.slowest = 0.0

    def data(self, block: int) -> np.ndarray:
        said = hashlib.shake_128(b"payload %d" % block).digest(self.size)
        return np.frombuffer(said, dtype=np.uint8)

    def begin(self, **more: Any) -> ReqContext:
        self.requests += 1
        context = ReqContext(req_id=f"r{self.requests}", **more)
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        began = time.perf_counter()
        self.manager.on_schedule_end(ScheduleEndContext([], []))
        self.slowest = max(self.slowest, time.perf_counter() - began)

    def settle(self, patience_s: float = 20.0) -> None:
        end = time.monotonic() + patience_s
        while self.manager.has_pending_work():
            self.step()
            assert time.monotonic() < end, "transfers do not end"
            time.sleep(0.001)

    def store(self, blocks: list[int]) -> dict[str, Any]:
        """Half of the host memory at a time."""
        batch = max(1, len(self.memory) // 2)
        for at in range(0, len(blocks), batch):
            part = {key(block): block for block in blocks[at : at + batch]}
            context = self.begin()
            out = self.manager.prepare_store(list(part), context)
            assert out is not None, "the host memory is full"
            for name, chunk in zip(out.keys_to_store, out.store_spec.chunk_ids, strict=True):
                self.memory[int(chunk)] = self.data(part[name])
            self.manager.complete_store(out.keys_to_store, context)
            self.manager.on_request_finished(context)
            self.step()
            self.settle()
        return {}

    def ask(
        self, blocks: list[int], tiers: list[list[str]] | None = None, step_s: float = 0.001
    ) -> dict[str, Any]:
        """Each block by a request of its own, nothing of it in host memory; what came of it, and
        whether the bytes were right. `step_s`: what a step of the engine takes."""
        self.manager.reset_cache()
        self.slowest, found = 0.0, []
        limits = {}
        if tiers is not None:
            matchers = tuple(TierMatcher(Medium(m), Locality(where)) for m, where in tiers)
            limits["load_tier_filter"] = TierFilter(matchers)
        for block in blocks:
            began, steps = time.monotonic(), 0
            context = self.begin(**limits)
            while True:
                before = time.perf_counter()
                result = self.manager.lookup(key(block), context)
                self.slowest = max(self.slowest, time.perf_counter() - before)
                if result in END or time.monotonic() > began + 15.0:
                    break
                self.step()
                steps += 1
                time.sleep(step_s)
            took_s = time.monotonic() - began
            right = self.loaded(block, context) if result is LookupResult.HIT else None
            self.manager.on_request_finished(context)
            self.step()
            found.append(
                {"block": block, "result": result.name, "right": right, "s": took_s, "steps": steps}
            )
        return {"found": found, "slowest_s": self.slowest}

    def loaded(self, block: int, context: ReqContext) -> bool:
        spec = self.manager.prepare_load([key(block)], context)
        is_right = bool((self.memory[int(spec.chunk_ids[0])] == self.data(block)).all())
        self.manager.complete_load([key(block)], context)
        return is_right

    def up(self, patience_s: float) -> dict[str, Any]:
        """Waits for the daemon, without a step; of the requests only the first looks for it."""
        if not self.requests:
            context = self.begin()
            self.manager.on_request_finished(context)
        end = time.monotonic() + patience_s
        while not self.manager.secondary_tiers[0].connected:
            assert time.monotonic() < end, "no daemon"
            time.sleep(0.005)
        return {}

    def idle(self, steps: int) -> dict[str, Any]:
        """Seconds per step: a request that asks for 8 blocks in it, and nothing else."""
        began = time.perf_counter()
        for _ in range(steps):
            context = self.begin()
            for block in range(100_000, 100_008):
                self.manager.lookup(key(block), context)
            self.manager.on_request_finished(context)
            self.step()
        return {"s_per_step": (time.perf_counter() - began) / steps, "slowest_s": self.slowest}

    def stats(self) -> dict[str, Any]:
        """vLLM's own counters of this tier since the last time."""
        stats = self.manager.get_stats()
        if stats is None:
            return {}
        kinds, data = stats.data["types"], stats.data["data"]
        return {
            name.rpartition(":")[2]: sum(
                value for labels, value in data[name].items() if not labels or labels[0][0] != "0"
            )
            for name, kind in kinds.items()
            if kind == "counter"
        }


def seed(text: str) -> None:
    """What vLLM does once it has made its scheduler."""
    if text:
        os.environ["PYTHONHASHSEED"] = text
    else:
        os.environ.pop("PYTHONHASHSEED", None)
    kv_cache_utils.init_none_hash(sha256_cbor)


def filled_in(said: dict[str, Any]) -> dict[str, Any]:
    """What the connector makes of its options, and what vLLM's factories make of that."""
    extra = connector.offloading(said)
    assert connector.offloading(extra) == extra
    spec = OffloadingSpecFactory.get_spec_cls(extra)
    metrics = sorted(spec.build_metric_definitions(extra))
    return {"extra": extra, "spec": spec.__name__, "metrics": metrics}


def main() -> None:
    seed("")
    engines: dict[str, Engine] = {}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        name, what = order.pop("engine"), order.pop("do")
        try:
            if what == "open":
                engines[name] = Engine({**order, "engine": name})
                answer: dict[str, Any] = {}
            elif what == "close":
                engines.pop(name).manager.shutdown()
                answer = {}
            elif what == "seed":
                seed(order["text"])
                answer = {}
            elif what == "copies":
                copies.check_all()
                answer = {}
            elif what == "connector":
                answer = filled_in(order["said"])
            else:
                answer = getattr(engines[name], what)(**order)
        except (AssertionError, ValueError, TypeError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
