"""A daemon that hangs, dies, lies or is not there: the engine loses hits, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz import kvbm_frames
from harness.blocks import Daemon, Engine, name
from harness.waiting import until

LATE, LOST, MISS, DISK = 20, 21, 0, 2
STALE_S = 0.4


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.end()


@pytest.fixture
def engine(daemon: Daemon, tmp_path: Path) -> Iterator[Engine]:
    # The patience of a scheduler's thread.
    with Engine(str(tmp_path / "kvbm.sock"), lookup_us=1000) as engine:
        yield engine.up()


def test_a_load_from_a_stopped_daemon_ends_in_time_and_its_slot_is_left_alone(
    daemon: Daemon, engine: Engine
) -> None:
    engine.store([1])
    daemon.process.send_signal(signal.SIGSTOP)
    job = next(engine.jobs)
    assert engine.client.load(job, [name(1)], [5], deadline_us=200_000)
    done = engine.end_of(job)
    assert (done.ok, list(done.statuses)) == (False, [LATE])
    # From here on the slot is the engine's.
    engine.fill(5, 77)
    daemon.process.send_signal(signal.SIGCONT)
    until(lambda: engine.lookup([1]) == [DISK], "the daemon again")
    assert engine.load([1]).ok
    assert engine.holds(5, 77)


def test_lookups_at_a_stopped_daemon_are_misses_and_cost_nothing(
    daemon: Daemon, engine: Engine
) -> None:
    engine.store([1])
    assert engine.lookup([1]) == [DISK]
    daemon.process.send_signal(signal.SIGSTOP)
    until(lambda: engine.lookup([1]) == [MISS], "that it is noticed", 3 * STALE_S + 1.0)
    assert not engine.client.load(next(engine.jobs), [name(1)], [0])
    assert engine.try_store([2]) is None
    asked = engine.client.stats()["lookups"]
    for _ in range(1000):
        assert engine.lookup([1, 2, 3]) == [MISS] * 3
    assert engine.client.stats()["lookups"] == asked
    daemon.process.send_signal(signal.SIGCONT)
    until(lambda: engine.lookup([1]) == [DISK], "the daemon again")


def test_jobs_end_with_their_daemon(daemon: Daemon, engine: Engine) -> None:
    engine.store([1])
    daemon.process.send_signal(signal.SIGSTOP)
    jobs = [next(engine.jobs) for _ in range(5)]
    for job in jobs:
        assert engine.client.load(job, [name(1)], [job % 8], deadline_us=60_000_000)
    daemon.end()
    assert [list(engine.end_of(job).statuses) for job in jobs] == [[LOST]] * 5
    assert engine.client.under_way == 0


def test_a_daemon_that_comes_late_is_found(tmp_path: Path) -> None:
    with Engine(str(tmp_path / "kvbm.sock"), lookup_us=1000) as engine:
        for _ in range(50):
            assert engine.lookup([1]) == [MISS]
        assert "kvbm.sock" in engine.client.trouble
        daemon = Daemon(tmp_path)
        until(lambda: engine.try_store([1]) is not None, "a store")
        assert engine.lookup([1]) == [DISK]
        daemon.end()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", os.urandom(4096)])
def test_whoever_else_listens_there_is_no_daemon(tmp_path: Path, said: bytes) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "kvbm.sock"))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.sendall(said)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with Engine(str(tmp_path / "kvbm.sock"), lookup_us=1000) as engine:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                assert engine.lookup([1]) == [MISS]
                assert engine.try_store([1]) is None
            assert engine.client.trouble
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_reconnecting_leaks_no_descriptors(tmp_path: Path) -> None:
    with Engine(str(tmp_path / "kvbm.sock")) as engine:
        counts = []
        for _ in range(6):
            daemon = Daemon(tmp_path)
            engine.up().store([1])
            counts.append(len(os.listdir("/proc/self/fd")))
            daemon.end()
            until(lambda: (engine.collect(), not engine.client.connected)[1], "the loss")
        assert counts[-1] <= counts[0] + 1, counts


def test_whatever_a_client_says_others_are_served() -> None:
    """A few seconds; longer: `python tests/fuzz/kvbm_frames.py --seconds 300`."""
    assert kvbm_frames.run(2.0, seed=1) > 20
