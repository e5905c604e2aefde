"""`kill -9` of the whole daemon, at any time and at named places, while an engine works with it.

What was acknowledged to the engine is there and right afterwards; nothing else ever appears.
`KVBM_TORTURE_LOOPS=200 pytest tests/kvbm/test_torture.py` for a long one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from harness.blocks import Engine, name
from harness.waiting import until

LOOPS = int(os.environ.get("KVBM_TORTURE_LOOPS", "6"))
READY_S = 5.0
BATCH = 4
POINTS = (
    "record.written",
    "journal.write",
    "journal.written",
    "segment.create",
    "segment.recycle",
    "segment.renamed",
    "segment.forgotten",
    "snapshot.part",
    "snapshot.synced",
    "snapshot.renamed",
    "snapshot.replaced",
    "sync.journal",
)


class Daemon:
    """A core in a child process."""

    def __init__(self, root: Path, capacity: int, points: str) -> None:
        arguments = (str(root / "kvbm.sock"), str(root / "disk"), str(capacity), points)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.kvbm_child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{Path.cwd()}:{Path.cwd() / 'tests'}"},
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        # It may die while it opens the store, at a named place; then it says nothing.
        self.ready_s = float(said[1]) if said else None

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Ledger:
    """What the engine knows."""

    def __init__(self) -> None:
        self.offered: set[int] = set()
        self.stored: set[int] = set()
        self.dropping: set[int] = set()
        self.dropped: set[int] = set()


def work(engine: Engine, daemon: Daemon, ledger: Ledger, first: int, dice: random.Random) -> None:
    """Stores, loads and drops until the daemon is gone or enough was done."""
    for n in range(first, first + BATCH * dice.randrange(5, 60), BATCH):
        if not daemon.is_alive:
            return
        blocks = list(range(n, n + BATCH))
        ledger.offered.update(blocks)
        done = engine.try_store(blocks)
        if done is not None:
            ends = zip(blocks, done.statuses, strict=True)
            ledger.stored.update(block for block, status in ends if status == 0)
        if ledger.stored and dice.random() < 0.2:
            known = dice.choice(sorted(ledger.stored))
            loaded = engine.try_load([known])
            assert loaded is None or not loaded.ok or engine.holds(0, known), "wrong bytes"
        if ledger.stored and dice.random() < 0.1:
            victim = dice.choice(sorted(ledger.stored))
            ledger.dropping.add(victim)
            if engine.client.drop([name(victim)]) == 1:
                ledger.dropped.add(victim)
                ledger.stored.discard(victim)


def check(engine: Engine, ledger: Ledger, evicting: bool) -> None:
    offered = sorted(ledger.offered)
    for start in range(0, len(offered), 16):
        blocks = offered[start : start + 16]
        tiers = engine.lookup(blocks)
        there = [block for block, tier in zip(blocks, tiers, strict=True) if tier == 2]
        assert not ledger.dropped & set(there), "a dropped block came back"
        lost = ledger.stored - ledger.dropping - set(there)
        assert evicting or not lost & set(blocks), "an acknowledged block is gone"
        if there:
            assert engine.load(there).ok, "it was said to be there"
            assert all(engine.holds(slot, block) for slot, block in enumerate(there))


def torture(root: Path, capacity: int, seed: int) -> None:
    dice = random.Random(seed)
    ledger = Ledger()
    evicting = capacity < 64 << 20
    with Engine(str(root / "kvbm.sock"), lookup_us=2_000_000) as engine:
        for turn in range(LOOPS):
            by_point = dice.random() < 0.7
            point = f"{dice.choice(POINTS)}=kill@{dice.randrange(40)}" if by_point else ""
            daemon = Daemon(root, capacity, point)
            if daemon.ready_s is not None and engine.client.connect(10.0):
                work(engine, daemon, ledger, (turn + 1) * 10_000, dice)
            daemon.end()
            until(lambda: (engine.collect(), not engine.client.connected)[1], "the loss")
            daemon = Daemon(root, capacity, "")
            assert daemon.ready_s is not None
            assert daemon.ready_s < READY_S
            engine.up()
            check(engine, ledger, evicting)
            daemon.end()
            until(lambda: (engine.collect(), not engine.client.connected)[1], "the loss")
    assert ledger.stored, "something was stored"


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    torture(tmp_path, 1 << 30, 1)


def test_nothing_is_wrong_while_old_blocks_are_evicted(tmp_path: Path) -> None:
    torture(tmp_path, 8 << 20, 2)
