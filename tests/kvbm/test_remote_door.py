"""The remote tier in the core, with a store that the test plays: what is sent, offered, fetched."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocks import BLOCK, SLOTS, Engine, name, payload
from harness.object_store import Objects
from harness.waiting import until

from native import _core

REMOTE, DISK, HOST, MISS = 3, 2, 1, 0


class Setup:
    """A core with a disk (or without) and a remote tier, an engine, and the store behind."""

    def __init__(self, root: Path, upload: str = "all", **options: object) -> None:
        self.root = root
        disk = _core.KvbmDisk(str(root / "disk"), 64 << 20, segment_bytes=1 << 20)
        given = {"disk": disk, "remote_blocks": 100_000, "upload": upload, **options}
        self.core = _core.KvbmCore(str(root / "s"), **given)  # type: ignore[arg-type]
        self.store = Objects(self.core)
        self.engine = Engine(str(root / "s")).up()

    def keys(self, blocks: range | list[int]) -> list[bytes]:
        return self.engine.client.keys([name(n) for n in blocks])

    @property
    def fingerprint(self) -> bytes:
        found = self.engine.client.fingerprint
        assert found is not None
        return found

    def figure(self, which: str) -> int:
        return int(self.core.stats()[which])

    def sent(self, count: int) -> None:
        until(lambda: (self.store.serve(), len(self.store.held) == count)[1], "the sends")

    def forget_locally(self) -> None:
        """The blocks of the disk go, their objects stay."""
        for fingerprint, key in self.store.held:
            self.core.drop(fingerprint, [key], local=True)

    def load(self, blocks: list[int]) -> list[int]:
        """Loads into slots 0, 1, ... while the store serves; the statuses."""
        return self.store.load(self.engine, blocks)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    with setup.engine:
        yield setup
    setup.core.stop()


def test_what_is_stored_is_sent_and_comes_back_from_there(there: Setup) -> None:
    there.engine.store(range(4))
    there.sent(4)
    assert there.figure("remote_blocks") == 4
    assert there.engine.lookup(range(5)) == [DISK] * 4 + [MISS], "the nearest tier is named"
    there.forget_locally()
    assert there.engine.lookup(range(5)) == [REMOTE] * 4 + [MISS]
    assert there.load([2, 1]) == [0, 0]
    assert there.engine.holds(0, 2)
    assert there.engine.holds(1, 1)
    assert there.figure("remote_fetched") == 2
    until(lambda: there.engine.lookup(range(4)) == [REMOTE, DISK, DISK, REMOTE], "them on disk")


def test_reuse_sends_what_was_loaded_once(tmp_path: Path) -> None:
    there = Setup(tmp_path, "reuse")
    with there.engine as engine:
        engine.store(range(3))
        assert there.store.serve() == 0
        assert engine.load([1]).ok
        there.sent(1)
        assert [key for _, key in there.store.held] == there.keys([1])
        assert there.store.seen == ["send"], "reading it for the store is no use of it"
        assert engine.load([1]).ok
        assert there.store.serve() == 0, "it is there"
    there.core.stop()


def test_a_store_that_is_away_fails_loads_and_nothing_else(there: Setup) -> None:
    there.engine.store(range(2))
    there.sent(2)
    there.forget_locally()
    there.engine.store([7])
    there.store.away = True
    assert there.load([0, 7]) == [16, 0]
    assert there.engine.holds(1, 7)
    assert there.figure("remote_failed") == 1
    there.store.door.pause(True)
    until(lambda: there.engine.lookup([0, 7]) == [MISS, DISK], "the pause")
    assert there.load([0]) == [1]
    there.store.door.pause(False)
    there.store.away = False
    until(lambda: there.engine.lookup([0]) == [REMOTE], "the end of the pause")
    assert there.load([0]) == [0]


def test_objects_that_are_gone_or_wrong_are_misses(there: Setup) -> None:
    there.engine.store(range(4))
    there.sent(4)
    there.forget_locally()
    keys = there.keys(range(4))
    held, print = there.store.held, there.fingerprint
    del held[print, keys[0]]
    held[print, keys[1]] = held[print, keys[1]][:-1] + b"!"
    held[print, keys[2]] = held[print, keys[3]]
    assert there.load([0, 1, 2, 3]) == [1, 17, 17, 0]
    assert there.engine.holds(3, 3)
    assert there.engine.lookup(range(4))[:3] == [MISS] * 3
    assert (there.figure("remote_absent"), there.figure("remote_corrupt")) == (1, 2)
    until(lambda: (there.store.serve(), (print, keys[1]) not in held)[1], "that it is deleted")


def test_a_load_that_is_late_leaves_its_slot_alone(there: Setup) -> None:
    there.engine.store([1])
    there.sent(1)
    there.forget_locally()
    assert there.engine.client.load(99, [name(1)], [5], deadline_us=100_000)
    assert list(there.engine.end_of(99).statuses) == [20]
    there.engine.fill(5, 77)
    assert there.store.serve() == 1, "the fetch still runs"
    until(lambda: there.engine.lookup([1]) == [DISK], "the block, for the next one who asks")
    assert there.engine.holds(5, 77)


def test_drops_reach_the_store(there: Setup) -> None:
    there.engine.store(range(3))
    there.sent(3)
    keys = there.keys(range(3))
    assert there.engine.client.drop([name(0)]) == 1
    dropped = there.store.drop(there.fingerprint, [keys[1]])
    assert (dropped.host, dropped.disk, dropped.remote) == (0, 1, 1)
    until(lambda: (there.store.serve(), len(there.store.held) == 1)[1], "the deletions")
    assert there.engine.lookup(range(3)) == [MISS, MISS, DISK]


def test_the_chain_ahead_is_brought_nearer(there: Setup) -> None:
    there.engine.store(range(8))
    there.sent(8)
    there.forget_locally()
    there.engine.client.prefetch([name(n) for n in range(4)])
    served = until(lambda: there.store.serve(), "errands")
    assert served == 4
    assert there.store.seen[-4:] == ["ahead"] * 4
    until(lambda: there.engine.lookup(range(8)) == [DISK] * 4 + [REMOTE] * 4, "them on disk")
    assert there.core.hint(there.fingerprint, there.keys(range(8)), BLOCK) == 4
    until(lambda: (there.store.serve(), there.engine.lookup(range(8)) == [DISK] * 8)[1], "the rest")
    assert there.figure("ahead_brought") == 8


@pytest.mark.parametrize("upload", ["all", "reuse"])
def test_host_and_remote_do_without_a_disk(tmp_path: Path, upload: str) -> None:
    core = _core.KvbmCore(
        str(tmp_path / "s"), host_bytes=8 << 20, remote_blocks=1000, upload=upload
    )
    store = Objects(core)
    with Engine(str(tmp_path / "s")) as engine:
        arena = engine.up().client.arena()
        assert arena is not None
        with mmap.mmap(arena[0], arena[1]) as memory:
            os.close(arena[0])
            [(status, page, generation)] = engine.client.reserve([name(1)])
            assert status == 0
            memory[page * 4096 : page * 4096 + BLOCK] = payload(1)
            assert engine.client.commit([(page, generation)]) == b"\0"
            if upload == "reuse":
                assert store.serve() == 0
                assert engine.client.fetch(4, [name(1)])
                engine.client.release(engine.end_of(4).seats)
            until(lambda: (store.serve(), len(store.held) == 1)[1], "the send")
            [(fingerprint, key)] = store.held
            record = store.held[fingerprint, key]
            assert record[4096 : 4096 + BLOCK] == payload(1)
            dropped = store.drop(fingerprint, [key])
            assert (dropped.host, dropped.disk, dropped.remote) == (1, 0, 1)
            assert not store.held
            store.held[fingerprint, key] = record
            assert store.door.known(fingerprint, [key]) == 1
            assert engine.client.lookup([name(1)], arena=True) == bytes([REMOTE])
            assert engine.client.fetch(5, [name(1)])
            until(lambda: (store.serve(0.01), engine.collect(), 5 in engine.done)[2], "the fetch")
            [(page, generation)] = engine.done.pop(5).seats
            assert memory[page * 4096 : page * 4096 + BLOCK] == payload(1)
            # The region's way works without a disk, too.
            engine.client.release([(page, generation)])
            assert engine.client.load(6, [name(1)], [SLOTS - 1])
            until(lambda: (store.serve(0.01), engine.collect(), 6 in engine.done)[2], "the load")
            assert engine.done.pop(6).ok
            assert engine.holds(SLOTS - 1, 1)
    core.stop()


def test_a_stopped_core_lets_its_courier_go(tmp_path: Path) -> None:
    there = Setup(tmp_path)
    there.engine.__exit__(None, None, None)
    there.core.stop()
    assert there.store.door.errands(1, 1, 1, 60.0) is None


def test_what_engines_looked_up_is_reported(there: Setup) -> None:
    there.engine.store(range(2))
    before = there.figure("found_disk")
    there.engine.lookup(range(3))

    def told() -> bool:
        there.engine.lookup([])
        there.engine.collect()
        return there.figure("found_disk") >= before + 2

    until(told, "the report")
    assert there.figure("found_missed") >= 1


def test_hashes_come_back_from_keys(there: Setup) -> None:
    keys = there.engine.client.keys([name(1, 0), name(1, 3)])
    assert _core.KvbmCore.hashes(there.fingerprint, keys[:1], 0) == [name(1)[:32]]
    assert _core.KvbmCore.hashes(there.fingerprint, keys[1:], 3) == [name(1)[:32]]


def test_tuning_takes_effect(there: Setup) -> None:
    there.core.tune(load_s=1.0, store_s=1.0, allow_uids=[], reuse=3, write_rate=0)
    for expected in (3, 3, 0):
        assert list(there.engine.store([1]).statuses) == [expected]
    counts, total = there.core.durations()["store"]
    assert sum(counts) == 3
    assert total > 0
