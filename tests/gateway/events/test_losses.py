"""The subscriber on real sockets: batches that are lost, doubled, late, or no batches at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import zmq
from harness import kv_events as kv
from harness import waiting

from engines.sim.process import SimEngine
from gateway.kv import feed, sequence

Start = Callable[..., SimEngine]


def test_a_late_join_learns_everything_and_goes_on(sim: Start, followed: kv.Followed) -> None:
    one = sim("--num-gpu-blocks", 24)
    kv.fill(one, 8)
    key = followed.follow(one)
    followed.wait(key, "exact")
    followed.wait_equal(key, one)
    kv.fill(one, 8, "land")
    followed.wait_equal(key, one)
    assert followed.tally(key).gaps == 0 and len(followed.book.held(0)) > 5


def test_an_idle_engine_is_exact(sim: Start, followed: kv.Followed) -> None:
    key = followed.follow(sim())
    view = followed.wait(key, "exact")
    assert view.heard_at is None and view.next == 0


def test_message_17_of_20_is_lost_and_the_replay_heals(sim: Start, followed: kv.Followed) -> None:
    one = sim()
    key = followed.follow(one)
    followed.wait(key, "exact")
    one.faults(["events_drop:skip=16,times=1"])
    kv.fill(one, 20)
    followed.wait_equal(key, one)
    followed.wait(key, "exact")
    assert followed.tally(key).gaps == 1 and followed.tally(key).lost == 0
    assert followed.book.clears[0] == 1  # of the beginning: nothing was forgotten


def test_a_gap_without_replay_forgets_what_may_be_gone(sim: Start, followed: kv.Followed) -> None:
    one = sim(replay_endpoint=None)
    key = followed.follow(one)
    followed.wait(key, "healing", "no replay endpoint")
    kv.fill(one, 3)
    followed.wait(key, "exact")
    one.faults(["events_lost:times=1"])
    kv.fill(one, 2, "land")
    followed.wait(key, "healing", "1 batches were lost")
    assert len(followed.book.held(0)) < len(kv.cached(one))
    assert followed.book.held(0).items() <= kv.cached(one).items()
    one.call("POST", "/reset_prefix_cache")
    kv.fill(one, 1, "sea")  # an idle engine tells of it with its next step
    followed.wait(key, "exact")
    followed.wait_equal(key, one)


def test_a_gap_that_the_replay_has_lost_too(sim: Start, followed: kv.Followed) -> None:
    one = sim()
    key = followed.follow(one)
    followed.wait(key, "exact")
    kv.fill(one, 3)
    one.faults(["events_lost:times=1"])
    kv.fill(one, 2, "land")
    followed.wait(key, "healing", "its replay does not give them")
    assert followed.book.held(0).items() <= kv.cached(one).items()


def test_a_replay_that_does_not_answer(
    sim: Start, followed: kv.Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "REPLAY_S", 0.3)
    monkeypatch.setattr(sequence, "CHECK_S", 1.0)
    one = sim()
    kv.fill(one, 3)
    one.faults(["replay_silent"])
    key = followed.follow(one)
    followed.wait(key, "healing", "does not answer")
    one.faults([])
    followed.wait(key, "exact")  # it is asked once more
    followed.wait_equal(key, one)


def test_a_hole_in_a_replay_is_filled(sim: Start, followed: kv.Followed) -> None:
    one = sim()
    kv.fill(one, 12)
    one.faults(["replay_hole:times=1"])
    key = followed.follow(one)
    followed.wait(key, "exact")
    followed.wait_equal(key, one)
    assert followed.tally(key).replays >= 2


def test_a_replay_that_loses_its_end_goes_on_at_once(
    sim: Start, followed: kv.Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine drops what its socket does not take, the end with it."""
    monkeypatch.setattr(sequence, "REPLAY_S", 60.0)
    monkeypatch.setattr(sequence, "STALL_S", 0.2)
    one = sim()
    kv.fill(one, 12)
    one.faults(["replay_cut:times=2"])
    key = followed.follow(one)
    followed.wait(key, "exact")
    followed.wait_equal(key, one)
    assert followed.tally(key).replays == 3 and followed.book.clears[0] == 1


def test_a_replay_that_begins_too_late(sim: Start, followed: kv.Followed) -> None:
    one = sim(buffer_steps=4)
    kv.fill(one, 12)
    key = followed.follow(one)
    followed.wait(key, "healing", "its replay begins later")
    held = followed.book.held(0)
    assert held and held.items() <= kv.cached(one).items() and len(held) < len(kv.cached(one))


def test_doubled_and_late_batches_change_nothing(sim: Start, followed: kv.Followed) -> None:
    one = sim()
    key = followed.follow(one)
    followed.wait(key, "exact")
    one.faults(["events_dup:times=1", "events_late:ms=300,times=1"])
    kv.fill(one, 6)
    waiting.until(lambda: followed.tally(key).duplicates >= 2, "both to have come twice")
    followed.wait_equal(key, one)
    followed.wait(key, "exact")
    assert followed.book.clears[0] == 1


@pytest.mark.parametrize("how", ["restart", "seq_restart"])
def test_a_restart_on_the_same_connection_clears_at_once(
    sim: Start, followed: kv.Followed, how: str
) -> None:
    one = sim()
    key = followed.follow(one)
    kv.fill(one, 5)
    followed.wait(key, "exact")
    followed.wait_equal(key, one)
    one.faults([how])
    kv.fill(one, 1, "land")
    waiting.until(lambda: followed.tally(key).restarts == 1, "the restart to be seen")
    followed.wait(key, "exact")
    waiting.until(lambda: followed.book.batches[0] == 6, "the new batch")
    assert followed.book.held(0).items() <= kv.cached(one).items()
    if how == "restart":
        followed.wait_equal(key, one)


def test_frames_that_are_no_batches_are_counted(sim: Start, followed: kv.Followed) -> None:
    one = sim()
    key = followed.follow(one)
    followed.wait(key, "exact")
    one.faults(["events_garbage:times=1"])
    kv.fill(one, 2)
    followed.wait(key, "healing", feed.NO_READ)
    assert followed.tally(key).malformed == 1


def test_frames_of_another_shape_are_counted(followed: kv.Followed) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        pub.linger = 0
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        key = ("main", "odd")
        followed.wanted[key] = kv.Wanted(0, kv.Source(f"tcp://127.0.0.1:{port}"))
        followed.subscriber.follow(followed.wanted)
        followed.wait(key, "healing")

        def sent() -> bool:
            pub.send_multipart([b"", b"short", b"x"])
            pub.send_multipart([b"one frame"])
            return followed.tally(key).malformed >= 4

        waiting.until(sent, "odd frames to be counted")
        assert followed.book.batches[0] == 0


def test_each_rank_is_followed_by_itself(sim: Start, followed: kv.Followed) -> None:
    one = sim("--data-parallel-size", 2)
    zero, first = followed.follow(one, 0, rank=0), followed.follow(one, 1, rank=1)
    for key in (zero, first):
        followed.wait(key, "exact")
    kv.fill(one, 3, rank=1)
    followed.wait_equal(first, one, rank=1)
    assert followed.book.held(0) == {} and len(followed.book.held(1)) > 3
    kv.fill(one, 2, rank=0)
    followed.wait_equal(zero, one, rank=0)


def test_only_the_topic_that_was_told_is_read(sim: Start, followed: kv.Followed) -> None:
    one = sim(replay_endpoint=None)
    other = followed.follow(one, topic="other")
    followed.wait(other, "healing")
    kv.fill(one, 3)
    key = ("main", "again")
    followed.wanted[key] = kv.Wanted(1, kv.source(one))
    followed.subscriber.follow(followed.wanted)
    followed.wait(key, "healing")

    words = itertools.count()

    def seen() -> bool:
        kv.fill(one, 1, f"word {next(words)}")
        return followed.book.batches[1] > 0

    waiting.until(seen, "batches under the right topic")
    assert followed.book.batches[0] == 0


@pytest.mark.parametrize("flag", ["--kv-events-bytes-hashes"])
def test_hashes_of_32_bytes(sim: Start, followed: kv.Followed, flag: str) -> None:
    one = sim(flag)
    key = followed.follow(one)
    kv.fill(one, 2)
    followed.wait(key, "exact")
    waiting.until(lambda: len(followed.book.held(0)) == len(kv.cached(one)), "all blocks")
