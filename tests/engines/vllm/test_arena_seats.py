"""An engine's use of the arena, with a real daemon core and no vLLM."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.blocks import BLOCK, DESCRIPTOR, PROBE, name, payload
from harness.waiting import until

from engines.vllm.arena_place import Seat
from engines.vllm.arena_seats import PENDING, STALE_STEPS, ArenaSeats
from engines.vllm.load_gate import LoadGate, Pace
from native import _core

PAGE = 4096
ALL = (1, 2, 3)
MISS, HOST, DISK = 0, 1, 2


@dataclass
class Machine:
    """A daemon that can end and come back, with its disk; times are the test's."""

    root: Path
    host_bytes: int = 8 << 20
    has_disk: bool = True
    core: _core.KvbmCore = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    @property
    def socket(self) -> str:
        return str(self.root / "kvbm.sock")

    def start(self) -> None:
        disk = _core.KvbmDisk(str(self.root / "disk"), 64 << 20) if self.has_disk else None
        self.core = _core.KvbmCore(self.socket, disk=disk, host_bytes=self.host_bytes)

    def figure(self, figure: str) -> int:
        return int(self.core.stats()[figure])


class Engine:
    """vLLM's part: steps, and a worker that copies."""

    def __init__(self, machine: Machine) -> None:
        self.client = _core.KvbmClient(
            machine.socket, "engine", DESCRIPTOR, PROBE, BLOCK, lookup_us=500_000
        )
        assert self.client.connect(20.0), self.client.trouble
        self.pace = Pace()
        self.seats = ArenaSeats(self.client, LoadGate(self.pace, 16))
        self.now = 100.0
        self.step()

    def step(self) -> None:
        self.seats.end_step(self.now)
        self.seats.begin(self.now)

    def look(self, request: str, blocks: list[int], tiers: tuple[int, ...] = ALL) -> list[int]:
        return [self.seats.lookup(request, name(n), tiers, self.now) for n in blocks]

    def found(self, request: str, blocks: list[int], tiers: tuple[int, ...] = ALL) -> list[int]:
        """What lookups come to, some steps later."""

        def decided() -> list[int] | None:
            found = self.look(request, blocks, tiers)
            if PENDING not in found:
                return found
            self.step()
            return None

        answer = until(decided, "an answer of the arena", 20.0)
        assert answer is not None
        return answer

    def memory(self) -> mmap.mmap:
        place = self.seats.place
        assert place is not None
        fd = os.open(place.path, os.O_RDWR)
        try:
            assert os.fstat(fd).st_ino == place.inode
            return mmap.mmap(fd, place.size)
        finally:
            os.close(fd)

    def reserve(self, blocks: list[int]) -> list[Seat]:
        names = [name(n) for n in blocks]
        granted = self.seats.reserve(names, is_chain=True)
        assert granted is not None
        return [seat for _, seat in granted]

    def write(self, blocks: list[int]) -> None:
        seats = self.reserve(blocks)
        assert len(seats) == len(blocks)
        with self.memory() as memory:
            for n, seat in zip(blocks, seats, strict=True):
                memory[seat.page * PAGE : seat.page * PAGE + BLOCK] = payload(n)
        self.seats.written([name(n) for n in blocks], ok=True)

    def read(self, request: str, blocks: list[int]) -> None:
        """As a worker does, checked."""
        names = [name(n) for n in blocks]
        with self.memory() as memory:
            for n, seat in zip(blocks, self.seats.take(request, names), strict=True):
                assert memory[seat.page * PAGE : seat.page * PAGE + BLOCK] == payload(n)
        self.seats.loaded(request, names)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.core.stop()


def test_what_one_engine_writes_another_reads(machine: Machine) -> None:
    one, two = Engine(machine), Engine(machine)
    assert one.look("a", [1, 2, 3]) == [MISS] * 3
    one.write([1, 2, 3])
    assert one.reserve([1, 2, 3]) == [], "they are there"
    assert two.look("b", [1, 2, 3, 4]) == [PENDING] * 3 + [MISS]
    assert two.found("b", [1, 2, 3, 4]) == [HOST] * 3 + [MISS]
    two.read("b", [1, 2])
    until(lambda: machine.figure("host_held") == 0, "what was not taken is let go")
    figures = (one.seats.figures, two.seats.figures)
    assert [(f.stored, f.loaded, f.shed, f.failed) for f in figures] == [(3, 0, 0, 0), (0, 2, 0, 0)]


def test_what_left_the_arena_comes_back_from_the_disk(machine: Machine) -> None:
    engine = Engine(machine)
    engine.write([1, 2])
    until(lambda: machine.figure("disk_stored") == 2, "the blocks on disk")
    machine.core.stop()
    machine.start()
    until(engine.client.connect, "the daemon", 20.0)
    engine.step()
    assert engine.found("a", [1, 2], tiers=(HOST,)) == [MISS, MISS], "it may not use the disk"
    assert engine.found("a", [1, 2]) == [DISK, DISK]
    engine.read("a", [1, 2])


def test_a_request_that_ends_holds_nothing(machine: Machine) -> None:
    engine = Engine(machine)
    engine.write([1, 2])
    assert engine.found("a", [1]) == [HOST]
    engine.seats.forget("a")
    assert engine.look("b", [2]) == [PENDING]
    engine.seats.end_step(engine.now)
    engine.seats.forget("b")  # Its fetch is under way.

    def idle() -> bool:
        engine.step()
        return not engine.seats.under_way and machine.figure("host_held") == 0

    until(idle, "nothing held")


def test_seats_of_a_lost_connection_are_void(machine: Machine) -> None:
    """A block of the next connection may have the same seat: it must not become a wrong block."""
    engine = Engine(machine)
    engine.write([1])
    [old] = engine.reserve([2])
    assert engine.found("a", [1]) == [HOST]
    engine.seats.take("a", [name(1)])
    machine.core.stop()
    machine.has_disk = False
    machine.start()
    until(engine.client.connect, "the daemon", 20.0)
    engine.step()
    again = engine.reserve([3, 4])
    assert old.page in {seat.page for seat in again}, "the same page"
    assert engine.reserve([2]) == [], "a worker may still write to the old one"
    engine.seats.written([name(2)], ok=True)
    assert engine.found("b", [2, 3, 4]) == [MISS] * 3
    engine.seats.loaded("a", [name(1)])
    assert len(engine.reserve([2])) == 1, "the worker is done"


def test_without_a_daemon_all_is_a_miss(machine: Machine) -> None:
    engine = Engine(machine)
    engine.write([1])
    machine.core.stop()
    until(lambda: not engine.client.connected and not engine.step(), "the loss is seen", 20.0)
    assert (engine.look("a", [1]), engine.reserve([2])) == ([MISS], [])


def test_a_full_arena_refuses_and_serves(tmp_path: Path) -> None:
    machine = Machine(tmp_path, host_bytes=4 << 20, has_disk=False)
    engine, slots = Engine(machine), (4 << 20) // BLOCK
    blocks = list(range(slots))
    engine.write(blocks)
    assert set(engine.found("a", blocks)) == {HOST}
    assert engine.reserve([1000]) == [], "everything is held"
    assert engine.seats.figures.shed == 1
    engine.read("a", blocks)
    until(lambda: machine.figure("host_held") == 0, "nothing held")
    assert len(engine.reserve([1000])) == 1
    machine.core.stop()


def test_forgotten_jobs_give_their_seats_back_later(machine: Machine) -> None:
    engine = Engine(machine)
    engine.write([1])
    assert engine.found("a", [1]) == [HOST]
    engine.seats.take("a", [name(1)])
    engine.reserve([2])
    engine.seats.reset()
    for _ in range(STALE_STEPS - 1):
        engine.step()
    assert (machine.figure("host_held"), engine.reserve([2])) == (2, []), "a worker may be at them"
    engine.step()
    until(lambda: machine.figure("host_held") == 0, "nothing held")
    assert len(engine.reserve([2])) == 1
