"""Host, disk and remote tiers together against a dict, with crashes of nothing and lies of none:
whatever is done in whatever order, a load brings the right bytes or none.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from harness.blocks import BLOCK, Engine, name
from harness.object_store import Objects
from harness.waiting import until
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from native import _core

BLOCKS = strategies.lists(strategies.integers(0, 40), min_size=1, max_size=6, unique=True)
GOOD = {0}
# Absent, refused by the budget of time or of the queue, failed, damaged, late: never an error.
MISSES = {1, 5, 16, 17, 20}


class Tiers(RuleBasedStateMachine):
    """A disk of a few segments, so that it evicts; a store that is sometimes away."""

    bundle_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kvbm-model-"))
        self.stored: set[int] = set()
        self.store: Objects | None = None
        self.start()

    def start(self) -> None:
        disk = _core.KvbmDisk(str(self.root / "d"), 8 << 20, segment_bytes=1 << 20, sync_s=0.01)
        self.core = _core.KvbmCore(
            str(self.root / "s"), disk=disk, remote_blocks=1000, upload="all",
            bundle_bytes=self.bundle_bytes, bundle_below=BLOCK, bundle_s=0.001,
        )  # fmt: skip
        before = self.store
        self.store = Objects(self.core)
        if before is not None:
            self.store.held, self.store.bundles = before.held, before.bundles
            self.store.marks = before.marks
        self.engine = Engine(str(self.root / "s")).up()
        fingerprint = self.engine.client.fingerprint
        assert fingerprint is not None
        self.fingerprint = fingerprint
        self.store.survey()

    def stop(self) -> None:
        self.engine.__exit__(None, None, None)
        self.core.stop()

    def served(self, patience_s: float = 0.0) -> int:
        assert self.store is not None
        return self.store.serve(patience_s)

    def drain(self) -> None:
        def idle() -> bool:
            waits = int(self.core.stats()["remote_queued_sends"])
            return not self.served() and not waits

        until(idle, "an empty desk", 10.0)

    def key(self, block: int) -> bytes:
        [key] = self.engine.client.keys([name(block)])
        return key

    @rule(blocks=BLOCKS)
    def put(self, blocks: list[int]) -> None:
        done = self.engine.store(blocks)
        assert set(done.statuses) <= GOOD | MISSES | {6}
        self.stored.update(b for b, s in zip(blocks, done.statuses, strict=True) if s == 0)

    @rule(blocks=BLOCKS)
    def get(self, blocks: list[int]) -> None:
        job = next(self.engine.jobs)
        names = [name(block) for block in blocks]
        assert self.engine.client.load(job, names, list(range(len(blocks))))
        until(lambda: (self.served(0.002), self.engine.collect(), job in self.engine.done)[2],
              "a load", 10.0)  # fmt: skip
        done = self.engine.done.pop(job)
        for slot, (block, status) in enumerate(zip(blocks, done.statuses, strict=True)):
            assert status in GOOD | MISSES, status
            if status == 0:
                assert block in self.stored, "a block that was never stored, or was dropped"
                assert self.engine.holds(slot, block), "wrong bytes"
        assert done.moved_bytes == BLOCK * list(done.statuses).count(0)

    @rule(blocks=BLOCKS)
    def forget(self, blocks: list[int]) -> None:
        self.drain()  # what is on its way to the store has come there
        assert self.store is not None
        self.store.drop(self.fingerprint, [self.key(block) for block in blocks])
        self.stored -= set(blocks)
        assert not any(self.engine.lookup(blocks))

    @rule(blocks=BLOCKS)
    def hint(self, blocks: list[int]) -> None:
        self.engine.client.prefetch([name(block) for block in blocks])

    @rule()
    def carry(self) -> None:
        self.drain()

    @rule()
    def away(self) -> None:
        assert self.store is not None
        self.store.away = not self.store.away

    @rule()
    def restart(self) -> None:
        self.stop()
        self.start()

    @precondition(lambda self: self.store.held or self.store.bundles)
    @rule(data=strategies.data())
    def spoil(self, data: Any) -> None:
        assert self.store is not None
        objects = self.store.held or self.store.bundles
        which = data.draw(strategies.sampled_from(sorted(objects)))
        bad = bytearray(objects[which])
        bad[data.draw(strategies.integers(0, len(bad) - 1))] ^= 0x10
        objects[which] = bytes(bad)

    @invariant()
    def bounded(self) -> None:
        assert int(self.core.stats()["disk_used_bytes"]) <= 8 << 20

    def teardown(self) -> None:
        self.stop()
        shutil.rmtree(self.root)


class Bundled(Tiers):
    """The same with blocks that go to the store three at a time."""

    bundle_bytes = 4096 + 3 * (BLOCK + 4096)


SETTINGS = settings(
    max_examples=8, stateful_step_count=25, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestTiers = Tiers.TestCase
TestTiers.settings = SETTINGS
TestBundled = Bundled.TestCase
TestBundled.settings = SETTINGS
