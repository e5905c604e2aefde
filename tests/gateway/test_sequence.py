"""Batches of KV events by their numbers: every fault that a publisher and a connection can have."""

from __future__ import annotations

from collections import deque

import pytest
from harness.publisher import World, joined

from gateway.kv import pending, sequence
from gateway.kv.sequence import CHECK_S, LOST_S, REPLAY_S


def test_a_late_join_replays_from_0_and_then_follows() -> None:
    world = joined(5)
    assert world.asked == [0] and world.numbers() == [0, 1, 2, 3, 4]
    assert world.stream.exact and world.stream.reason == ""
    world.publish(3)
    world.deliver()
    assert world.numbers() == list(range(8)) and world.asked == [0]


def test_an_idle_engine_is_whole_with_nothing() -> None:
    world = joined(0)
    assert world.stream.exact and world.applied == []
    world.publish()
    world.deliver()
    assert world.numbers() == [0] and world.clears == []


def test_batches_that_come_during_the_replay_wait_for_it() -> None:
    world = joined(0)
    world.publish(2)
    world.deliver()
    late = World()
    late.publish(5)
    late.attach()
    late.publish(3)  # live, and not yet in the replay that was asked for
    late.deliver()
    assert late.applied == [] and not late.stream.exact
    late.answer()
    assert late.numbers() == list(range(8)) and late.stream.exact


def test_a_join_whose_replay_begins_late_is_not_whole() -> None:
    world = joined(20, buffer=4)
    assert world.numbers() == [16, 17, 18, 19]
    assert not world.stream.exact and "begins later" in world.stream.reason
    world.publish()
    world.deliver()
    assert world.numbers() == [16, 17, 18, 19, 20]
    world.stream.complete()  # AllBlocksCleared: what was before does not matter any more
    assert world.stream.exact


def test_a_gap_is_filled_by_the_replay_in_order() -> None:
    world = joined(5)
    world.publish(3, drop=True)
    world.publish(2)
    world.deliver()
    assert world.stream.tally.gaps == 1 and not world.stream.exact
    assert "3 batches are missing" in world.stream.reason
    world.publish(2)  # these wait
    world.deliver()
    assert world.numbers() == [0, 1, 2, 3, 4]
    world.answer()
    assert world.numbers() == list(range(12))
    assert world.asked == [0, 4]  # the last one that is known proves that it is the same engine
    assert world.clears == [] and world.stream.exact and world.stream.tally.lost == 0


def test_a_gap_that_the_replay_cannot_fill_clears() -> None:
    world = joined(5, buffer=2)
    world.stream.complete()
    world.publish(10, drop=True)
    world.publish()
    world.deliver()
    world.answer()
    assert len(world.clears) == 1 and world.numbers() == [14, 15]
    assert not world.stream.exact and world.stream.tally.lost > 0


def test_a_batch_that_the_replay_lacks_too_clears_after_a_few_tries() -> None:
    world = joined(5)
    world.publish(forget=True)
    world.publish()
    world.deliver()
    world.answer()
    assert world.numbers() == [6] and len(world.clears) == 1
    assert len(world.asked) == 1 + sequence.TRIES_MAX
    assert "does not give them" in world.stream.reason and world.stream.tally.lost == 1


def test_a_gap_without_a_replay_socket_clears_and_begins_anew() -> None:
    world = joined(0, replays=False)
    world.publish(3)
    world.deliver()
    assert world.numbers() == [0, 1, 2] and world.stream.exact
    world.publish(drop=True)
    world.publish(2)
    world.deliver()
    assert world.numbers() == [4, 5] and world.asked == []
    assert world.stream.reason == "1 batches were lost: it has no replay endpoint"


def test_a_late_join_without_a_replay_socket_is_not_whole() -> None:
    world = World(replays=False)
    world.publish(4)
    world.attach()
    world.publish(2)
    world.deliver()
    assert world.numbers() == [4, 5] and not world.stream.exact and world.stream.reason


def test_a_restart_clears_at_once() -> None:
    world = joined(6)
    world.restart(keep_connection=True)
    world.publish()
    world.deliver()
    assert world.clears == ["it has restarted"] and world.numbers() == [0]
    assert world.stream.exact and world.stream.tally.restarts == 1


def test_a_restart_whose_first_batches_were_missed_replays_from_0() -> None:
    world = joined(6)
    world.restart(keep_connection=True)
    world.publish(2, drop=True)
    world.publish()
    world.deliver()
    assert world.applied == [] and world.asked == [0, 0]
    world.answer()
    assert world.numbers() == [0, 1, 2] and world.stream.exact


@pytest.mark.parametrize("batches", [0, 2, 5, 6, 30])
def test_a_restart_while_the_connection_was_away_is_found_when_it_is_back(batches: int) -> None:
    """Also one that nothing but the batches themselves shows: its numbers simply go on."""
    world = joined(5)
    world.restart()
    world.publish(batches)
    world.attach()
    world.answer()
    assert world.numbers() == list(range(batches)) and world.stream.exact
    assert world.stream.tally.restarts == 1 and len(world.clears) == 1


def test_a_restart_behind_a_gap_is_found() -> None:
    world = joined(5)
    world.restart(keep_connection=True)
    world.publish(8, drop=True)  # nothing of the new life's beginning comes through
    world.publish()
    world.deliver()
    world.answer()
    assert world.numbers() == list(range(9)) and world.stream.tally.restarts == 1


def test_a_connection_that_comes_back_to_the_same_engine_changes_nothing() -> None:
    world = joined(5)
    world.detach()
    assert world.stream.reason == "its connection is away"
    world.publish(2)
    world.attach()
    assert not world.stream.exact
    world.answer()
    assert world.numbers() == list(range(7)) and world.clears == [] and world.stream.exact


def test_a_connection_that_stays_away_makes_it_forget() -> None:
    world = joined(5)
    world.detach()
    world.wait(LOST_S - 1)
    assert len(world.applied) == 5 and world.stream.why != sequence.NOT_CONNECTED
    world.wait(2)
    assert world.applied == [] and world.stream.reason == sequence.NOT_CONNECTED
    world.attach()
    world.answer()
    assert world.numbers() == [0, 1, 2, 3, 4] and world.stream.exact


def test_duplicates_and_late_batches_are_ignored() -> None:
    world = joined(3)
    world.publish(2)
    world.live.extend(list(world.live))
    world.deliver()
    assert world.numbers() == list(range(5)) and world.stream.tally.duplicates == 2
    world.publish(2)
    first, second = world.live
    world.live = deque([second, first])
    world.deliver()
    world.answer()
    world.settle()
    assert world.numbers() == list(range(7)) and world.stream.exact


def test_a_replay_that_does_not_answer_leaves_it_partly_known_and_is_tried_again() -> None:
    world = World()
    world.answering = False
    world.publish(4)
    world.attach()
    world.publish(2)
    world.deliver()
    world.wait(REPLAY_S)
    assert world.numbers() == [4, 5] and "does not answer" in world.stream.reason
    world.answering = True
    world.wait(CHECK_S)
    assert world.numbers() == list(range(6)) and world.stream.exact
    assert world.clears == ["begun anew"]


def test_what_a_full_socket_drops_from_a_replay_is_asked_for_again() -> None:
    world = World()
    world.publish(10)
    world.attach()
    world.cut_answers(4)
    world.answer()
    assert world.numbers() == list(range(10)) and world.stream.exact
    assert world.asked == [0, 3]


def test_a_replay_that_loses_its_end_goes_on_where_it_stopped() -> None:
    """A full socket of the engine drops the last batches and the mark of the end with them."""
    world = World()
    world.publish(10)
    world.attach()
    world.cut_end(4)
    world.answer()
    assert world.numbers() == [0, 1, 2, 3] and not world.stream.exact
    world.wait(sequence.STALL_S)
    assert world.asked == [0, 3] and world.numbers() == list(range(10)) and world.stream.exact


def test_a_replay_that_stops_for_good_is_not_taken_for_whole() -> None:
    world = World()
    world.publish(10)
    world.attach()
    world.cut_end(4)
    world.answer()
    world.answering = False
    world.wait(sequence.STALL_S + REPLAY_S)
    assert not world.stream.exact and "does not" in world.stream.reason
    world.answering = True
    world.settle()
    assert world.numbers() == list(range(10)) and world.stream.exact


def test_an_idle_check_that_nobody_answers_changes_nothing() -> None:
    world = joined(3)
    world.answering = False
    for _ in range(3):
        world.wait(CHECK_S)
        world.publish()
        world.deliver()
    assert world.stream.exact and world.numbers() == list(range(6)) and world.clears == []


def test_a_last_batch_that_was_lost_is_found_by_the_check() -> None:
    world = joined(3)
    world.publish(drop=True)
    world.wait(sequence.FIRST_CHECK_S)
    assert world.numbers() == [0, 1, 2, 3]
    world.publish(drop=True)
    world.wait(CHECK_S)
    assert world.numbers() == [0, 1, 2, 3, 4] and world.clears == []


def test_what_waits_for_a_replay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "BATCHES_MAX", 8)
    world = World()
    world.publish(3)
    world.attach()
    world.publish(100)
    world.deliver()
    assert len(world.stream._pending) <= 8 and world.stream.tally.overflows > 0
    world.settle()
    assert world.numbers() == list(range(103)) and world.stream.exact


def test_what_is_remembered_of_batches_is_bounded() -> None:
    world = joined(0)
    for _ in range(50):
        world.publish(400)
        world.deliver()
    assert len(world.stream._prints._known) < 1000
