"""The daemon core and the client through their Python surface."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocks import BLOCK, DESCRIPTOR, PROBE, Engine, name, payload
from harness.waiting import until

from native import _core

HEADER = 4096


def start(root: Path, **options: object) -> _core.KvbmCore:
    disk = _core.KvbmDisk(str(root / "disk"), 64 << 20, **options)  # type: ignore[arg-type]
    return _core.KvbmCore(str(root / "kvbm.sock"), disk=disk)


@pytest.fixture
def core(tmp_path: Path) -> Iterator[_core.KvbmCore]:
    core = start(tmp_path)
    yield core
    core.stop()


@pytest.fixture
def engine(core: _core.KvbmCore, tmp_path: Path) -> Iterator[Engine]:
    with Engine(str(tmp_path / "kvbm.sock")) as engine:
        yield engine.up()


def test_blocks_go_down_and_come_back(core: _core.KvbmCore, engine: Engine) -> None:
    assert engine.lookup(range(4)) == [0] * 4
    done = engine.store(range(4))
    assert (done.ok, done.statuses, done.moved_bytes) == (True, bytes(4), 4 * BLOCK)
    assert engine.lookup(range(5)) == [2, 2, 2, 2, 0]
    assert engine.load([3, 2]).ok
    assert engine.holds(0, 3)
    assert engine.holds(1, 2)
    missing = engine.load([9])
    assert (missing.ok, missing.statuses) == (False, b"\x01")
    stats = core.stats()
    # Lookups are answered from the shared table, without the daemon, which does not count them.
    assert (stats["disk_blocks"], stats["sessions"]) == (4, 1)


def test_it_serves_while_python_is_stalled(engine: Engine) -> None:
    """A thread that holds the interpreter's lock delays callers in this process, not the core."""
    engine.store([1])
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(100_000))

    threads = [threading.Thread(target=burn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert engine.load([1]).ok
        assert engine.holds(0, 1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    core = start(tmp_path)
    with Engine(str(tmp_path / "kvbm.sock")) as engine:
        engine.up().store([1, 2])
        core.stop()
        assert not core.running
        until(lambda: (engine.collect(), engine.client.connected)[1] is False, "the loss")
        assert engine.lookup([1]) == [0]
        assert "kvbm.sock" in engine.client.trouble
        core = start(tmp_path)
        until(lambda: engine.lookup([1, 2]) == [2, 2], "the blocks again")
        assert engine.client.stats()["restarts"] == 1
        assert core.stats()["disk_recovered"] == 2
    core.stop()


def test_lists_drops_and_scrubs(core: _core.KvbmCore, engine: Engine) -> None:
    engine.store(range(6))
    fingerprint = engine.client.fingerprint
    assert fingerprint is not None
    [(number, found, probe, descriptor)] = core.namespaces()
    assert (found, probe, descriptor) == (fingerprint, PROBE, DESCRIPTOR)
    rows, cursor = core.blocks()
    keys = engine.client.keys([name(n) for n in range(6)])
    assert cursor is None
    assert {row[1] for row in rows} == set(keys)
    assert all(row[0] == number and row[2] == BLOCK for row in rows)
    assert core.drop(fingerprint, [keys[0], keys[1], bytes(32)]).disk == 2
    assert engine.client.drop([name(2), name(99)]) == 1
    assert engine.lookup(range(6)) == [0, 0, 0, 2, 2, 2]
    assert core.scrub()
    until(lambda: (core.scrub_report() or (0, 0, 0, False))[3], "the end of the scrub")
    report = core.scrub_report()
    assert report is not None
    assert (report[0], report[2]) == (3, 0)


def test_a_record_travels(core: _core.KvbmCore, engine: Engine, tmp_path: Path) -> None:
    engine.store([7])
    fingerprint = engine.client.fingerprint
    assert fingerprint is not None
    [key] = engine.client.keys([name(7)])
    record = core.read(fingerprint, key)
    assert record is not None
    assert record[HEADER:] == payload(7)
    assert core.read(fingerprint, bytes(32)) is None
    other_root = tmp_path / "other"
    other = start(other_root)
    refusal = other.insert(record)
    assert refusal is not None
    assert "namespace" in refusal
    with Engine(str(other_root / "kvbm.sock")) as there:
        there.up()
        assert "bad record" in (other.insert(record[:-1] + b"!") or "")
        assert other.insert(record) is None
        assert there.load([7]).ok
        assert there.holds(0, 7)
    other.stop()


def test_changes_are_told(core: _core.KvbmCore, engine: Engine) -> None:
    assert engine.client.follow()
    engine.store([1])
    engine.client.drop([name(1)])
    [key] = engine.client.keys([name(1)])
    told: list[str] = []

    def heard() -> bool:
        engine.collect()
        _missed, changes = engine.client.take_changes()
        told.extend(what for what, tier, _, k, _ in changes if (tier, k) == (2, key))
        return len(told) == 2

    until(heard, "two changes")
    assert told == ["stored", "removed"]
    complete, first, changes = core.changes(1)
    assert (complete, first) == (True, 1)
    assert [what for what, *_ in changes] == ["stored", "removed"]


def test_pins_hold_for_their_lease(core: _core.KvbmCore, engine: Engine) -> None:
    engine.store([1])
    assert engine.client.pin([name(1), name(9)], 100) == b"\x01\x00"
    assert core.stats()["disk_pinned_segments"] == 1
    until(lambda: core.stats()["disk_pinned_segments"] == 0, "the end of the lease")
    assert engine.client.pin([name(1)], 60_000) == b"\x01"
    engine.client.unpin([name(1)])
    assert core.stats()["disk_pinned_segments"] == 0


def test_another_seed_is_seen(core: _core.KvbmCore, engine: Engine, tmp_path: Path) -> None:
    engine.store([1])
    with Engine(str(tmp_path / "kvbm.sock"), probe=bytes(32)) as other:
        other.up()
        assert other.lookup([1]) == [0]
        assert other.client.differing_probes == 1


def test_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`io` is auto, uring or threads, not `aio`"):
        _core.KvbmDisk(str(tmp_path), 1 << 30, io="aio")
    with pytest.raises(OSError, match="a capacity of 4096 bytes"):
        start_small = _core.KvbmDisk(str(tmp_path), 4096)
        _core.KvbmCore(str(tmp_path / "s"), disk=start_small)
    with pytest.raises(OSError, match="107 bytes"):
        _core.KvbmCore(str(tmp_path / ("x" * 200)))
    client = _core.KvbmClient(str(tmp_path / "none"), "e", b"{}", bytes(32), 4096)
    with pytest.raises(ValueError, match="5 to 36 bytes"):
        client.lookup([b"abc"])
    with pytest.raises(ValueError, match="one slot"):
        client.store(1, [name(1)], [])
    with pytest.raises(OSError, match="descriptor 99999"):
        client.lend(99_999, 4096, 1)


def test_two_cores_do_not_share_a_directory_or_a_socket(
    core: _core.KvbmCore, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match=f"in use by process {os.getpid()}"):
        start(tmp_path)
    with pytest.raises(OSError, match=r"kvbm\.sock"):
        _core.KvbmCore(str(tmp_path / "kvbm.sock"))
    assert core.running


def test_without_a_disk_everything_is_a_miss(tmp_path: Path) -> None:
    core = _core.KvbmCore(str(tmp_path / "kvbm.sock"))
    with Engine(str(tmp_path / "kvbm.sock")) as engine:
        engine.up()
        assert engine.lookup([1]) == [0]
        done = engine.store([1])
        assert (done.ok, done.statuses) == (False, b"\x06")
    core.stop()


def test_the_arena_is_written_shared_and_fetched(tmp_path: Path) -> None:
    disk = _core.KvbmDisk(str(tmp_path / "disk"), 64 << 20)
    core = _core.KvbmCore(str(tmp_path / "kvbm.sock"), disk=disk, host_bytes=16 << 20)
    names = [name(n) for n in range(3)]
    with Engine(str(tmp_path / "kvbm.sock")) as one, Engine(str(tmp_path / "kvbm.sock")) as two:
        arena = one.up().client.arena()
        assert arena is not None
        fd, size, epoch = arena
        with mmap.mmap(fd, size) as memory:
            reserved = one.client.reserve(names)
            assert [status for status, _, _ in reserved] == [0, 0, 0]
            for n, (_, page, _) in enumerate(reserved):
                memory[page * 4096 : page * 4096 + BLOCK] = payload(n)
            seats = [(page, generation) for _, page, generation in reserved]
            assert one.client.commit(seats) == bytes(3)
            assert [status for status, _, _ in one.client.reserve(names)] == [23, 23, 23]
            assert two.up().client.lookup(names, arena=True) == b"\x01\x01\x01"
            assert two.client.fetch(1, names)
            done = two.end_of(1)
            assert (done.ok, len(done.seats)) == (True, 3)
            for n, (page, generation) in enumerate(done.seats):
                assert memory[page * 4096 : page * 4096 + BLOCK] == payload(n)
                assert two.client.valid(page, generation)
                assert not two.client.valid(page, generation + 1)
            two.client.release(done.seats)
        os.close(fd)
        arena_of_two = two.client.arena()
        assert arena_of_two is not None
        assert arena_of_two[2] == epoch
        os.close(arena_of_two[0])
        until(lambda: core.stats()["host_held"] == 0, "nobody holds anything")
        until(lambda: core.stats()["disk_stored"] == 3, "the blocks on disk")
    core.stop()
