"""Engines come, work, and go or die, again and again: memory, descriptors, pins and shared memory
stay where they were.

`KVBM_SOAK_S=3600 pytest tests/kvbm/test_soak.py` for a long one.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from harness.blocks import Engine, name
from harness.kvbm_daemon import Served
from harness.waiting import until

SOAK_S = float(os.environ.get("KVBM_SOAK_S", "4"))
WARM = 30  # rounds until the first look: allocators and caches have their sizes then
RSS_SLACK = 24 << 20
TEXT = "host { size 8m; }\ndisk { path disk; size 24m; segment 1m; sync 50ms; }\n"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one process. `shm`: its mappings of shared memory."""

    rss: int
    fds: int
    shm: int

    @classmethod
    def of(cls, pid: int) -> Sizes:
        status = Path(f"/proc/{pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        maps = Path(f"/proc/{pid}/maps").read_text()
        shared = sum("/memfd:" in line or "/dev/shm/" in line for line in maps.splitlines())
        return cls(int(line.split()[1]) << 10, fds, shared)


def turn(socket: str, dice: random.Random) -> None:
    """An engine that stores, loads, pins, and leaves without a word."""
    with Engine(socket, lookup_us=2_000_000) as engine:
        engine.up()
        for _ in range(3):
            first = dice.randrange(2000)
            blocks = list(range(first, first + 8))
            engine.try_store(blocks)
            there = [n for n, t in zip(blocks, engine.lookup(blocks), strict=True) if t == 2]
            if there:
                done = engine.try_load(there)
                assert done is not None
                for slot, (block, status) in enumerate(zip(there, done.statuses, strict=True)):
                    assert status != 0 or engine.holds(slot, block), "wrong bytes"
            engine.client.pin([name(n) for n in blocks], 60_000)
            engine.client.reserve([name(10_000 + n) for n in blocks])
        # What is under way when it goes.
        engine.client.load(999, [name(n) for n in blocks], list(range(8)))


def test_nothing_grows(tmp_path: Path) -> None:
    dice = random.Random(1)
    with Served(tmp_path, TEXT) as served:
        assert served.process is not None
        pid, rounds, first = served.process.pid, 0, None
        end = time.monotonic() + SOAK_S
        while time.monotonic() < end or first is None:
            turn(served.socket, dice)
            rounds += 1
            if rounds == WARM:
                until(lambda: served.status()["counters"]["sessions"] == 0, "that all are gone")
                first = Sizes.of(pid)
        until(lambda: served.status()["counters"]["sessions"] == 0, "that all are gone")
        until(lambda: served.tier("host")["held"] == 0, "that their slots are free", 20.0)
        assert served.tier("disk")["pinned_segments"] == 0
        last = Sizes.of(pid)
        assert last.fds <= first.fds + 2, (first, last)
        assert last.shm <= first.shm, (first, last)
        assert last.rss <= first.rss + RSS_SLACK, (first, last, rounds)
        assert served.tier("disk")["used_bytes"] <= 24 << 20
