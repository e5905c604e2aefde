"""`kill -9` of the whole daemon, at any time and at named places, while an engine works with it.

What was acknowledged to the engine is there and right afterwards; nothing else ever appears.
`KVBM_TORTURE_LOOPS=200 KVBM_TORTURE_SEED_BASE=7 pytest tests/kvbm/test_torture.py` for a long one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.blocks import Daemon, Engine, name
from harness.kvbm_daemon import Whole
from harness.waiting import until

LOOPS = int(os.environ.get("KVBM_TORTURE_LOOPS", "6"))
SEED = int(os.environ.get("KVBM_TORTURE_SEED_BASE", "1"))
READY_S = 5.0
# The machine may be busy with others.
STILL_S = 10.0
OK, TIMEOUT = 0, 20  # of a block's load
# A turn stores 236 blocks of 68 KiB at most: nothing has to go to make room.
ROOMY = max(1 << 30, LOOPS * (24 << 20))
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


class Ledger:
    """What the engine knows."""

    def __init__(self) -> None:
        self.offered: set[int] = set()
        self.stored: set[int] = set()
        self.dropping: set[int] = set()
        self.dropped: set[int] = set()


def work(engine: Engine, daemon: Any, ledger: Ledger, first: int, dice: random.Random) -> None:
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
        wanted = set() if evicting else ledger.stored - ledger.dropping
        there = found(engine, blocks, wanted & set(blocks))
        assert not ledger.dropped & set(there), "a dropped block came back"
        if there:
            assert set(loaded(engine, there)) == {OK}, "it was said to be there"
            assert all(engine.holds(slot, block) for slot, block in enumerate(there))


def loaded(engine: Engine, blocks: list[int]) -> bytes:
    """How each block's load ended: one that was late, or was not begun, is asked for again."""

    def load() -> bytes | None:
        done = engine.try_load(blocks)
        return None if done is None or TIMEOUT in done.statuses else done.statuses

    return until(load, "a load that is not late", STILL_S) or b""


def found(engine: Engine, blocks: list[int], wanted: set[int]) -> list[int]:
    """Those on disk, which the wanted ones have to be among. Whoever does not hear of a daemon for
    some tenths of a second misses everything, so what is missed is asked for again for a while."""

    def look() -> list[int] | None:
        tiers = engine.lookup(blocks)
        there = [block for block, tier in zip(blocks, tiers, strict=True) if tier == 2]
        return there if wanted <= set(there) else None

    def seen() -> tuple[list[int]] | None:
        there = look()
        return None if there is None else (there,)  # the list may be empty

    [there] = until(seen, "acknowledged blocks: one is gone", STILL_S) or ([],)
    return there


def torture(
    root: Path, capacity: int, seed: int, make: Callable[..., Any] = Daemon, loops: int = LOOPS
) -> None:
    """`make`: a daemon of that directory, size and named places, as `Daemon` is one."""
    dice = random.Random(seed)
    ledger = Ledger()
    evicting = capacity < ROOMY
    with Engine(str(root / "kvbm.sock"), lookup_us=2_000_000) as engine:
        for turn in range(loops):
            by_point = dice.random() < 0.7
            point = f"{dice.choice(POINTS)}=kill@{dice.randrange(40)}" if by_point else ""
            daemon = make(root, capacity, point)
            if daemon.ready_s is not None and engine.client.connect(10.0):
                work(engine, daemon, ledger, (turn + 1) * 10_000, dice)
            daemon.end()
            until(lambda: (engine.collect(), not engine.client.connected)[1], "the loss")
            daemon = make(root, capacity, "")
            assert daemon.ready_s is not None
            assert daemon.ready_s < READY_S
            engine.up()
            check(engine, ledger, evicting)
            daemon.end()
            until(lambda: (engine.collect(), not engine.client.connected)[1], "the loss")
    assert ledger.stored, "something was stored"


def test_the_whole_daemon_loses_nothing_either(tmp_path: Path) -> None:
    """Everything around the core, too: a few loops, since starting a process takes seconds."""
    torture(tmp_path, ROOMY, 2000 + SEED, Whole, max(2, LOOPS // 3))


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    torture(tmp_path, ROOMY, SEED)


def test_nothing_is_wrong_while_old_blocks_are_evicted(tmp_path: Path) -> None:
    torture(tmp_path, 8 << 20, 1000 + SEED)
