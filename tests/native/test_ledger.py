"""The ledger adds up over workers, through deaths of workers and engines that come and go."""

import random

import pytest
from harness.mapped import Writer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from native._core import Ledger
from native.reference import Books

WORKERS, SLOTS = 3, 2


def split(handle: int) -> tuple[int, int]:
    """(slot, generation)."""
    return handle & 0xFFFFFFFF, handle >> 32


class LedgerMachine(RuleBasedStateMachine):
    """Three workers, two slots of engines; handles of engines long gone are used as well."""

    @initialize()
    def open(self) -> None:
        first = Ledger(WORKERS, SLOTS)
        self.ledgers = [first, *(Ledger(WORKERS, SLOTS, first.fd) for _ in range(WORKERS - 1))]
        for worker, ledger in enumerate(self.ledgers):
            ledger.bind(worker)
        self.books = Books()
        self.present: list[int] = []
        self.known: list[int] = []

    @rule(worker=st.integers(0, WORKERS - 1))
    def add(self, worker: int) -> None:
        if len(self.present) == SLOTS:
            with pytest.raises(ValueError, match="room for 2 engines"):
                self.ledgers[worker].add_engine()
            return
        engine = self.ledgers[worker].add_engine()
        assert engine not in self.known
        self.present.append(engine)
        self.known.append(engine)

    @rule(data=st.data(), worker=st.integers(0, WORKERS - 1))
    def remove(self, data: st.DataObject, worker: int) -> None:
        if self.known:
            engine = data.draw(st.sampled_from(self.known))
            assert self.ledgers[worker].remove_engine(engine) is (engine in self.present)
            self.present = [other for other in self.present if other != engine]

    @rule(data=st.data(), worker=st.integers(0, WORKERS - 1), times=st.integers(1, 4))
    def acquire(self, data: st.DataObject, worker: int, times: int) -> None:
        if self.known:
            engine = data.draw(st.sampled_from(self.known))
            for _ in range(times):
                counted = self.ledgers[worker].acquire(engine)
                assert counted is self.books.acquire(worker, split(engine))

    @rule(data=st.data(), worker=st.integers(0, WORKERS - 1), times=st.integers(1, 3))
    def release(self, data: st.DataObject, worker: int, times: int) -> None:
        if self.known:
            engine = data.draw(st.sampled_from(self.known))
            for _ in range(times):
                counted = self.ledgers[worker].release(engine)
                assert counted is self.books.release(worker, split(engine))

    @rule(worker=st.integers(0, WORKERS - 1))
    def replace(self, worker: int) -> None:
        """A worker dies, its successor binds the slot; late writes of the dead one are lost."""
        dead = self.ledgers[worker]
        reaper = self.ledgers[(worker + 1) % WORKERS]
        assert reaper.retire(worker)
        self.books.retire(worker)
        for engine in self.known:
            assert dead.acquire(engine) is False
            assert dead.release(engine) is False
        self.ledgers[worker] = Ledger(WORKERS, SLOTS, reaper.fd)
        self.ledgers[worker].bind(worker)

    @invariant()
    def adds_up(self) -> None:
        for ledger in self.ledgers:
            for engine in self.known:
                assert ledger.inflight(engine) == self.books.inflight(split(engine))
                assert ledger.load(engine).dispatched == self.books.total(split(engine))
            shown = ledger.inflight_all()
            assert sorted(shown) == sorted(
                (engine, self.books.inflight(split(engine))) for engine in self.present
            )
            assert ledger.ignored() == (self.books.underflows, self.books.stale)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


BUSY = """
import random
from native._core import Ledger
ledger = Ledger(4, 8, fd)
ledger.bind(worker)
engines = [handle for handle, _ in ledger.inflight_all()]
rnd = random.Random(worker)
open_ = []
def step(i):
    ledger.beat(float(i + 1))
    if open_ and rnd.random() < 0.45:
        ledger.release(open_.pop(rnd.randrange(len(open_))), 10, 1)
    else:
        open_.append(rnd.choice(engines))
        ledger.acquire(open_[-1], 10, 1)
    ledger.mark_failure(engines[0], 1.0)
"""


def test_killed_workers_leave_nothing_in_flight_and_lose_no_count() -> None:
    rnd = random.Random(5)
    ledger = Ledger(4, 8)
    ledger.bind(3)
    engines = [ledger.add_engine() for _ in range(3)]
    for engine in engines:
        ledger.acquire(engine, 7, 2)
    floor = 0
    for _ in range(6):
        with Writer(BUSY, ledger.fd, 0) as one, Writer(BUSY, ledger.fd, 1) as two:
            steps = [writer.done(rnd.randint(1, 8)) for writer in (one, two)]
            for writer in (one, two):
                writer.kill()
        assert (ledger.last_beat(0) or 0) >= steps[0]
        before = [ledger.load(engine) for engine in engines]
        assert sum(load.inflight for load in before) > len(engines)
        floor += sum(steps)
        # Marks are one a step: none lost, and at most what was done after the last report is more.
        assert before[0].failed >= floor
        floor = before[0].failed
        assert ledger.retire(0) and ledger.retire(1) and not ledger.retire(2)
        after = [ledger.load(engine) for engine in engines]
        assert [load.inflight for load in after] == [1, 1, 1]
        assert [load.prefill_tokens for load in after] == [7, 7, 7]
        assert [load.decode_blocks for load in after] == [2, 2, 2]
        assert [load.dispatched for load in after] == [load.dispatched for load in before]
        assert ledger.last_beat(0) is None
    for engine in engines:
        assert ledger.release(engine, 7, 2)
    assert [ledger.inflight(engine) for engine in engines] == [0, 0, 0]
    assert ledger.ignored() == (0, 0)


def test_in_flight_is_never_negative_however_an_engine_flaps() -> None:
    """Ten requests run while their engine is removed and added again, over and over."""
    ledger = Ledger(1, 4)
    ledger.bind(0)
    old = [ledger.add_engine()]
    for _ in range(10):
        ledger.acquire(old[0])
    for _ in range(20):
        assert ledger.remove_engine(old[-1])
        old.append(ledger.add_engine())
        ledger.acquire(old[-1])
        ledger.release(old[0])
        assert [ledger.inflight(engine) for engine in old[-1:]] == [1]
        assert ledger.inflight(old[0]) >= 0


def test_work_follows_its_requests() -> None:
    ledger = Ledger(2, 2)
    ledger.bind(0)
    engine = ledger.add_engine()
    ledger.acquire(engine, prefill_tokens=4000)
    ledger.discharge(engine, prefill_tokens=4000)
    ledger.charge(engine, decode_blocks=250)
    load = ledger.load(engine)
    assert (load.inflight, load.prefill_tokens, load.decode_blocks) == (1, 0, 250)
    ledger.release(engine, decode_blocks=9999)
    load = ledger.load(engine)
    assert (load.inflight, load.prefill_tokens, load.decode_blocks) == (0, 0, 0)


def test_failures_are_counted_in_a_window_until_pardoned() -> None:
    ledger = Ledger(2, 1)
    other = Ledger(2, 1, ledger.fd)
    ledger.bind(0)
    other.bind(1)
    engine = ledger.add_engine()
    for now_s in (100.0, 104.0, 109.0):
        ledger.mark_failure(engine, now_s)
    other.mark_failure(engine, 109.5)
    assert [other.failures(engine, 110.0, window_s) for window_s in (0.5, 1.5, 6.5, 60)] == [
        0,
        2,
        3,
        4,
    ]
    assert ledger.load(engine).consecutive == 4
    ledger.mark_success(engine, 111.0)
    assert ledger.load(engine).consecutive == 1
    assert ledger.load(engine).last_failure_s == 109.5
    assert ledger.load(engine).last_success_s == 111.0
    ledger.clear_failures(engine, 109.0)
    assert other.failures(engine, 111.0, 60) == 1


def test_misuse_is_refused() -> None:
    ledger = Ledger(2, 4)
    engine = ledger.add_engine()
    for call in (ledger.acquire, ledger.release):
        with pytest.raises(RuntimeError, match="call `bind` first"):
            call(engine)
    ledger.bind(1)
    with pytest.raises(ValueError, match="worker 1 is bound already"):
        Ledger(2, 4, ledger.fd).bind(1)
    with pytest.raises(ValueError, match=r"worker 2 is outside 0\.\.2"):
        ledger.bind(2)
    for handle in (0, 3, engine + 4, 1 << 32 | 9):
        with pytest.raises(ValueError, match="not a handle"):
            ledger.acquire(handle)
    for workers, engines in ((0, 1), (1, 0), (2000, 1), (1, 70000)):
        with pytest.raises(ValueError, match="must be from 1 to"):
            Ledger(workers, engines)
    with pytest.raises(ValueError, match="these sizes need"):
        Ledger(2, 40, ledger.fd)
    with pytest.raises(ValueError, match="Bad file descriptor"):
        Ledger(2, 4, 9999)
