"""Jobs between an engine and kvbm: reported once, shed in time, not repeated when doomed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocks import Engine, name
from harness.waiting import until

from engines.vllm.block_jobs import BATCH_MAX, BlockJobs, Ended
from engines.vllm.doomed import DOOMED_MAX, DOOMED_S
from engines.vllm.load_gate import GATED_S, PROBE_BLOCKS, LoadGate, Pace
from native import _core

DISK = 2


class Fake:
    """A client whose jobs end when the test says so; `refuses`: begins none."""

    def __init__(self) -> None:
        self.begun: dict[int, int] = {}
        self.done: list[Done] = []
        self.touched: list[list[bytes]] = []
        self.refuses = False
        self.connected = True
        self.tier = DISK
        # Microseconds that a block's load is expected to take; what was said of gated ones.
        self.block_us = 0
        self.gated = 0
        self.brought: list[list[bytes]] = []
        self.limits: list[int] = []

    def expected_us(self, disk: int, remote: int) -> int:
        return (disk + 10 * remote) * self.block_us

    def count_gated(self, blocks: int) -> None:
        self.gated += blocks

    def prefetch(self, names: list[bytes]) -> None:
        self.brought.append(names)

    def lookup(self, names: list[bytes]) -> bytes:
        return bytes([self.tier]) * len(names)

    def store(self, job: int, names: list[bytes], slots: list[int], deadline_us: int) -> bool:
        assert len(names) == len(slots) <= BATCH_MAX
        if not self.refuses:
            self.begun[job] = len(names)
            self.limits.append(deadline_us)
        return not self.refuses

    load = store

    def end(self, job: int, statuses: bytes | None = None) -> None:
        self.done.append(Done(job, statuses or bytes(self.begun[job])))

    def poll(self) -> list[Done]:
        done, self.done = self.done, []
        return done

    def touch(self, names: list[bytes]) -> None:
        self.touched.append(names)


class Done:
    moved_bytes, spent_us = 10, 1000

    def __init__(self, job: int, statuses: bytes) -> None:
        self.job, self.statuses = job, statuses


def jobs(fake: Fake, slots: int = 40, us_per_token: float = 0.0) -> BlockJobs:
    return BlockJobs(fake, slots, LoadGate(Pace(us_per_token), 16))  # type: ignore[arg-type]


def names(*numbers: int) -> list[bytes]:
    return [name(n) for n in numbers]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[_core.KvbmCore]:
    disk = _core.KvbmDisk(str(tmp_path / "disk"), 64 << 20)
    core = _core.KvbmCore(str(tmp_path / "kvbm.sock"), disk=disk)
    yield core
    core.stop()


def test_blocks_go_to_a_daemon_and_come_back(core: _core.KvbmCore, tmp_path: Path) -> None:
    with Engine(str(tmp_path / "kvbm.sock")) as engine:
        work = BlockJobs(engine.up().client, 32, LoadGate(Pace(), 16))
        for slot in range(3):
            engine.fill(slot, slot)
        work.store(7, names(0, 1, 2), [0, 1, 2])
        [ended] = until(lambda: work.finished(0.0), "the store")
        assert (ended.job, ended.is_load, ended.ok) == (7, False, True)
        assert ended.good == tuple(names(0, 1, 2))
        assert work.lookup(name(1), 0.0) == DISK
        work.load(8, names(2, 9, 0), [10, 11, 12], 0.0)
        work.drain()
        [ended] = work.finished(0.0)
        assert (ended.job, ended.ok, ended.good) == (8, False, tuple(names(2, 0)))
        assert engine.holds(10, 2)
        assert engine.holds(12, 0)
        assert not work.under_way


def test_a_job_of_many_parts_is_reported_when_the_last_has_ended() -> None:
    fake = Fake()
    work = jobs(fake, slots=10 * BATCH_MAX)
    many = list(range(BATCH_MAX + 1))
    work.load(3, names(*many), many, 0.0)
    assert list(fake.begun.values()) == [BATCH_MAX, 1]
    fake.end(2, b"\x11")
    assert work.finished(0.0) == []
    fake.end(1)
    [ended] = work.finished(0.0)
    assert (ended.job, ended.ok, len(ended.good)) == (3, False, BATCH_MAX)
    assert ended.moved_bytes == 20


def test_what_failed_is_a_miss_until_it_is_stored_again_or_a_while_has_passed() -> None:
    fake = Fake()
    work = jobs(fake)
    work.load(1, names(1, 2), [0, 1], 100.0)
    fake.end(1, b"\x14\x00")
    [ended] = work.finished(100.0)
    assert ended.good == tuple(names(2))
    assert work.lookup(name(1), 100.0 + DOOMED_S - 0.1) == 0
    assert work.lookup(name(2), 100.0) == DISK
    assert work.lookup(name(1), 100.0 + DOOMED_S) == DISK
    work.load(2, names(1), [0], 200.0)
    fake.end(2, b"\x10")
    work.finished(200.0)
    assert work.lookup(name(1), 200.0) == 0
    work.store(3, names(1), [0])
    fake.end(3)
    work.finished(200.0)
    assert work.lookup(name(1), 200.0) == DISK
    work.load(4, names(1), [0], 200.0)
    fake.end(4, b"\x15")  # The daemon is gone: not this block's fault.
    work.finished(200.0)
    assert work.lookup(name(1), 200.0) == DISK
    assert work.figures.failed == 3


def test_what_is_remembered_of_failures_is_bounded() -> None:
    fake = Fake()
    work = jobs(fake)
    fake.refuses = True
    for at in range(0, DOOMED_MAX + 1, BATCH_MAX):
        blocks = list(range(at, at + BATCH_MAX))
        work.load(at, names(*blocks), blocks, 0.0)
    assert work.lookup(name(at + BATCH_MAX - 1), 0.0) == 0
    assert work.lookup(name(0), 0.0) == DISK


def test_stores_hold_a_quarter_of_the_slots_at_most_but_one_is_always_taken() -> None:
    fake = Fake()
    work = jobs(fake, slots=16)
    work.store(1, names(*range(6)), list(range(6)))
    work.store(2, names(7), [7])
    assert work.finished(0.0) == [Ended(2, False, False, (), 0, 0.0)]
    assert work.figures.shed == 1
    fake.end(1)
    [ended] = work.finished(0.0)
    assert ended.ok
    work.store(3, names(1, 2), [0, 1])
    work.store(4, names(3, 4), [2, 3])
    assert list(fake.begun) == [1, 2, 3]


def test_without_a_daemon_every_job_ends_at_once() -> None:
    fake = Fake()
    fake.refuses = True
    work = jobs(fake)
    work.store(1, names(1), [0])
    work.load(2, names(2), [1], 0.0)
    assert work.under_way
    assert [(one.job, one.ok) for one in work.finished(0.0)] == [(1, False), (2, False)]
    assert not work.under_way
    fake.tier = 255
    assert work.lookup(name(3), 0.0) == 0


def test_a_daemon_that_left_is_not_asked_again_in_a_step() -> None:
    fake = Fake()
    work = jobs(fake)
    assert work.lookup(name(1), 0.0) == DISK
    fake.connected = False
    work.finished(0.0)
    fake.connected = True
    assert work.lookup(name(1), 0.0) == 0
    work.finished(0.0)
    assert work.lookup(name(1), 0.0) == DISK


def test_what_policy_refuses_is_no_failure() -> None:
    fake = Fake()
    work = jobs(fake)
    work.store(1, names(1, 2, 3), [0, 1, 2])
    fake.end(1, bytes([0, 3, 4]))
    [ended] = work.finished(0.0)
    assert (ended.ok, ended.good) == (True, tuple(names(1)))
    work.store(2, names(1), [0])
    fake.end(2, b"\x05")
    [ended] = work.finished(0.0)
    assert not ended.ok


def test_touches_are_told_once_a_step() -> None:
    fake = Fake()
    work = jobs(fake)
    work.step()
    work.touch(names(1, 2))
    work.touch(names(2, 3))
    work.step()
    work.step()
    assert fake.touched == [names(1, 2, 3)]
    work.touch(names(*range(5000)))
    work.step()
    assert len(fake.touched[1]) == 4096


def test_what_is_computed_sooner_is_not_loaded_and_a_miss_for_a_while() -> None:
    fake = Fake()
    work = jobs(fake, us_per_token=100.0)
    many = list(range(20))
    fake.block_us = 10 * 16 * 100
    assert work.lookup(name(0), 1.0) == DISK
    work.load(5, names(*many), many, 1.0)
    [ended] = work.finished(1.0)
    assert (ended.job, ended.is_load, ended.ok, ended.good) == (5, True, False, ())
    assert not fake.begun
    assert (fake.gated, work.figures.gated, work.figures.failed) == (20, 20, 0)
    assert fake.brought == [names(*many[:PROBE_BLOCKS])]
    assert work.lookup(name(19), 1.0) == 0
    assert work.lookup(name(19), 1.0 + GATED_S) == DISK


def test_a_load_that_pays_is_given_up_long_before_it_would_not() -> None:
    fake = Fake()
    work = jobs(fake, us_per_token=100.0)
    many = list(range(20))
    fake.block_us = 100
    work.load(5, names(*many), many, 1.0)
    computing_us = 20 * 16 * 100
    assert fake.begun
    assert fake.limits == [2 * (20 * 100 + 1000) + computing_us // 10]


def test_blocks_of_the_object_store_are_weighed_as_such() -> None:
    fake = Fake()
    work = jobs(fake, us_per_token=100.0)
    fake.block_us, fake.tier = 400, 3
    for n in range(20):
        work.lookup(name(n), 1.0)
    work.load(5, names(*range(20)), list(range(20)), 1.0)
    assert not fake.begun
    work.step()
    work.load(6, names(*range(20, 40)), list(range(20)), 1.0)
    assert fake.begun == {1: 20}
