"""Limits over processes: exact, whoever is killed in between."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from multiprocessing import get_context

import pytest

from native._core import Conns, Limiter, Rates

fork = get_context("fork")


def child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_a_rate_is_one_over_processes() -> None:
    """Four processes at once: as many pass as one process would have let through."""
    table = Rates(64)
    passed = fork.Value("i", 0)
    pids = []

    def work() -> None:
        for _ in range(500):
            if table.take(b"k", 10**9, 10**9, 99, True) >= 0.0:
                with passed.get_lock():
                    passed.value += 1

    for _ in range(4):
        pids.append(child(work))
    for pid in pids:
        os.waitpid(pid, 0)
    assert passed.value == 100


@pytest.mark.parametrize("seed", range(3))
def test_counts_return_and_the_limit_holds_through_kills(seed: int) -> None:
    """Workers come and go in the middle of their work, by kill -9: the limit is never passed, and
    when all are gone nothing is left.
    """
    rng = random.Random(seed)
    workers, limit = 4, 7
    table = Conns(workers, 32)
    keys = [b"a", b"b", b"c"]

    def work(worker: int) -> None:
        table.bind(worker)
        mine = random.Random(os.getpid())
        held: list[bytes] = []
        while True:
            if held and mine.random() < 0.5:
                table.release(held.pop(mine.randrange(len(held))))
            else:
                key = mine.choice(keys)
                if table.acquire(key, limit):
                    held.append(key)

    pids = {worker: child(lambda worker=worker: work(worker)) for worker in range(workers)}
    try:
        for _ in range(60):
            seen = [table.count(key) for key in keys for _ in range(20)]
            assert max(seen) <= limit
            victim = rng.randrange(workers)
            os.kill(pids[victim], signal.SIGKILL)
            os.waitpid(pids[victim], 0)
            # One killed between its fork and its `bind` never had the slot.
            table.retire(victim)
            pids[victim] = child(lambda victim=victim: work(victim))
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for worker in pids:
        table.retire(worker)
    assert [table.count(key) for key in keys] == [0, 0, 0]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError):
        Rates(0)
    with pytest.raises(ValueError):
        Rates(8).take(b"k", 1, 0, 0, True)
    table = Conns(1, 8)
    with pytest.raises(RuntimeError):
        table.acquire(b"k", 1)
    table.bind(0)
    with pytest.raises(ValueError):
        Conns(2, 8, table.fd)
    assert not table.release(b"k")


def test_a_location_asks_all_its_limits_in_one_call() -> None:
    """Numbered rates first; who waits holds no place yet, and an empty key is not counted."""
    fast, slow, places = Rates(8), Rates(8), Conns(1, 8)
    places.bind(0)
    second = 10**9
    limits = Limiter(
        [(fast, second, 3, None, 0), (slow, second, 3, 1, 1)],
        [(places, 1, 0)],
    )
    both = (b"a", b"b")
    assert limits.of(both).enter(1.0) is None
    assert limits.of(both).enter(1.0) == (2, -1.0)  # counted by the rates, no place
    assert limits.of(both).enter(1.0) == (1, 1.0)  # two above the rate, one may be at once
    assert places.count(b"a") == 1
    assert limits.of(both).hold() == (2, -1.0)
    limits.of(both).leave()
    assert limits.of(both).hold() is None
    assert limits.of((b"", b"b")).enter(1.0) == (1, 2.0)
    assert limits.of((b"a", b"b")).enter(1.0) == (1, -1.0)  # not counted by the first
    assert limits.of((b"a", b"")).enter(1.0) == (2, -1.0)  # three above: the last that may be
    assert limits.of((b"a", b"")).enter(1.0) == (0, -1.0)


def test_what_a_limiter_refuses() -> None:
    rates = Rates(8)
    with pytest.raises(ValueError):
        Limiter([(rates, 0, 1, None, 0)], [])
    limits = Limiter([(rates, 1, 1, None, 1)], [])
    with pytest.raises(ValueError):
        limits.of((b"k",))
    with pytest.raises(TypeError):
        limits.of((b"k", "k"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        Limiter([], [(Conns(1, 8), 1, 0)]).of((b"k",)).enter(1.0)
