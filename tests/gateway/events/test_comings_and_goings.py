"""The subscriber on real sockets: engines that die, come back, are added and removed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from harness import kv_events as kv
from harness import waiting

from engines.sim.process import SimEngine
from gateway.kv import sequence

Start = Callable[..., SimEngine]


def test_an_engine_that_is_killed_and_started_again(
    followed: kv.Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ports stay, its numbers begin anew, and it may have said nothing yet."""
    monkeypatch.setattr(sequence, "LOST_S", 60.0)
    with kv.engine(thread=False) as first:
        kv.fill(first, 4)
        key = followed.follow(first)
        followed.wait(key, "exact")
        endpoints = kv.source(first)
        first.kill()
        followed.wait(key, "healing", "connection is away")
        assert followed.book.held(0), "a connection that breaks proves nothing yet"
        second = kv.engine(
            thread=False, endpoint=any_host(endpoints.endpoint),
            replay_endpoint=any_host(endpoints.replay),
        )  # fmt: skip
        with second:
            followed.wait(key, "exact")
            assert followed.book.held(0) == {}
            assert followed.tally(key).restarts == 1
            kv.fill(second, 4)
            followed.wait_equal(key, second)
            followed.wait(key, "exact")


def any_host(endpoint: str) -> str:
    return f"tcp://*:{endpoint.rpartition(':')[2]}"


def test_a_publisher_that_stays_away_is_forgotten(
    followed: kv.Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "LOST_S", 0.3)
    with kv.engine(thread=False) as one:
        kv.fill(one, 2)
        key = followed.follow(one)
        followed.wait(key, "exact")
        one.kill()
        view = followed.wait(key, "blind", "nobody publishes at tcp://")
        assert followed.book.held(0) == {} and view.next is None


def test_an_endpoint_where_nobody_publishes(
    sim: Start, followed: kv.Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "LOST_S", 0.2)
    key = followed.follow(sim(), endpoint="tcp://127.0.0.1:1")
    followed.wait(key, "blind", "nobody publishes at tcp://127.0.0.1:1; hint: ")


def test_an_endpoint_that_is_none(sim: Start, followed: kv.Followed) -> None:
    one = sim()
    bad = followed.follow(one, slot=0, endpoint="nonsense://somewhere")
    followed.wait(bad, "blind", "its events at nonsense://somewhere")
    well = followed.follow(sim(), slot=1)
    followed.wait(well, "exact")


def test_a_change_leaves_the_others_alone(sim: Start, followed: kv.Followed) -> None:
    """Engines come, go, and get other endpoints; who stays keeps its connection and its book."""
    stays, leaves, comes = sim(), sim(), sim()
    key = followed.follow(stays, 0)
    gone = followed.follow(leaves, 1)
    for one in (stays, leaves):
        kv.fill(one, 3)
    followed.wait_equal(key, stays)
    followed.wait_equal(gone, leaves)
    clears, replays = followed.book.clears[0], followed.tally(key).replays
    del followed.wanted[gone]
    new = followed.follow(comes, 2)
    followed.subscriber.release(1)
    followed.wait(new, "exact")
    waiting.until(lambda: followed.book.removed == [1], "the slot to be given back")
    assert followed.subscriber.view(gone) is None
    kv.fill(leaves, 2)
    kv.fill(stays, 2, "land")
    followed.wait_equal(key, stays)
    assert followed.book.clears[0] == clears and 1 not in followed.book.copies
    assert followed.tally(key).replays <= replays + 1  # the check soon after joining
    followed.wanted[key] = kv.Wanted(0, kv.source(comes))
    followed.subscriber.follow(followed.wanted)
    waiting.until(lambda: followed.book.held(0) == kv.cached(comes) or None, "the other's blocks")


def test_it_ends_and_leaves_no_thread_or_socket(sim: Start, followed: kv.Followed) -> None:
    key = followed.follow(sim())
    followed.wait(key, "exact")
    assert any(thread.name == "kv-events" for thread in threading.enumerate())
    followed.close()
    assert not any(thread.name == "kv-events" for thread in threading.enumerate())
    followed.close()  # a second time is nothing


def test_nothing_to_follow_starts_no_thread() -> None:
    one = kv.Followed()
    one.subscriber.follow({})
    one.subscriber.release(3)
    assert one.book.removed == [3]
    assert not any(thread.name == "kv-events" for thread in threading.enumerate())
