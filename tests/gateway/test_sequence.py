"""Batches of KV events by their numbers: every fault a publisher and a connection can have, and at
random all of them together.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import pending, sequence
from gateway.sequence import CHECK_S, LOST_S, REPLAY_S, Stream


def payload(life: int, seq: int) -> bytes:
    """As a publisher's: it begins with a time that no other batch has."""
    return b"\x93\xcb" + struct.pack(">d", life * 1000.0 + seq) + bytes(12)


class World:
    """One publisher, one stream, the two queues between them, and a clock."""

    def __init__(self, replays: bool = True, buffer: int = 10_000) -> None:
        self.now = 100.0
        self.life = 0
        self.history: list[int] = []  # numbers of batches of this life
        self.kept: deque[int] = deque(maxlen=buffer)
        self.live: deque[tuple[int, bytes]] = deque()
        self.answers: deque[tuple[int, bytes] | None] = deque()  # of the replay that runs
        self.answering = True
        self.attached = False
        self.stream = Stream(replays, self.now)
        self.applied: list[bytes] = []  # since the last clear
        self.clears: list[str] = []
        self.asked: list[int] = []

    # ---- the publisher

    def publish(self, count: int = 1, *, drop: bool = False, forget: bool = False) -> None:
        for _ in range(count):
            seq = len(self.history)
            self.history.append(seq)
            if not forget:
                self.kept.append(seq)
            if self.attached and not drop and not forget:
                self.live.append((seq, payload(self.life, seq)))

    def restart(self, keep_connection: bool = False) -> None:
        self.life += 1
        self.history.clear()
        self.kept.clear()
        if not keep_connection:
            self.detach()

    # ---- the connection

    def attach(self) -> None:
        self.attached = True
        self.do(self.stream.connected(self.now))

    def detach(self) -> None:
        if self.attached:
            self.attached = False
            self.live.clear()
            self.do(self.stream.disconnected(self.now))

    def deliver(self, count: int = 1_000_000) -> None:
        for _ in range(count):
            if not self.live:
                return
            self.do(self.stream.live(*self.live.popleft(), self.now))

    def answer(self, count: int = 1_000_000) -> None:
        for _ in range(count):
            if not self.answers:
                return
            one = self.answers.popleft()
            stream, now = self.stream, self.now
            self.do(stream.replay_over(now) if one is None else stream.replayed(*one, now))

    def cut_answers(self, at: int) -> None:
        """The engine's socket is full: batches of the replay behind the first are lost."""
        batches = [one for one in self.answers if one is not None]
        end = [None] if None in self.answers else []
        self.answers = deque([*batches[:at], *batches[at + 2 :], *end])

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.stream.due <= until:
            self.now = max(self.now, self.stream.due)
            self.do(self.stream.tick(self.now))
            self.deliver()
            self.answer()
        self.now = until

    def settle(self) -> None:
        """Everything arrives, and nothing happens for long."""
        self.answering = True
        if not self.attached:
            self.attach()
        for _ in range(4):
            self.deliver()
            self.answer()
            self.wait(2 * CHECK_S)

    def do(self, steps: list[sequence.Step]) -> None:
        for kind, value in steps:
            if kind == "apply":
                assert isinstance(value, bytes)
                self.applied.append(value)
            elif kind == "clear":
                self.applied.clear()
                self.clears.append(str(value))
            elif kind == "hush":
                self.answers.clear()
            else:
                assert kind == "ask" and isinstance(value, int)
                self.asked.append(value)
                self.answers.clear()
                if self.answering:
                    numbers = [s for s in self.kept if s >= value]
                    self.answers.extend((s, payload(self.life, s)) for s in numbers)
                    self.answers.append(None)

    # ---- what must be

    def numbers(self) -> list[int]:
        """What was applied, as numbers of this life."""
        known = {payload(self.life, s): s for s in range(len(self.history))}
        return [known[one] for one in self.applied]

    def check_run(self) -> None:
        """What was applied is a run of one publisher's batches."""
        times = [struct.unpack(">d", one[2:10])[0] for one in self.applied]
        assert all(b - a == 1 for a, b in itertools.pairwise(times)), times


def joined(batches: int = 5, **how: object) -> World:
    world = World(**how)  # type: ignore[arg-type]
    world.publish(batches)
    world.attach()
    world.answer()
    return world


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
    assert len(world.applied) == 5 and not world.stream.lost
    world.wait(2)
    assert world.applied == [] and world.stream.lost
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


OPS = (
    "publish", "drop", "forget", "deliver", "answer", "detach", "attach", "restart", "wait",
    "silence", "cut", "double",
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(5, 120),
    st.sampled_from([2, 8, 10_000]),
    st.lists(st.sampled_from(OPS), min_size=3, unique=True),
)
def test_whatever_happens_the_run_is_one_publishers_and_in_the_end_the_present_ones(
    seed: int, count: int, buffer: int, ops: list[str]
) -> None:
    draw = Random(seed)
    world = World(buffer=buffer)
    for _ in range(count):
        step(world, draw.choice([*ops, "publish", "deliver", "answer"]), draw)
        if world.stream.exact:
            world.check_run()
    world.settle()
    world.publish(2)
    world.settle()
    world.check_run()
    numbers = world.numbers()  # none of a former life
    assert numbers == world.history[len(world.history) - len(numbers) :]
    assert len(numbers) >= 2
    assert not world.stream.exact or numbers == world.history
    if buffer == 10_000 and "forget" not in ops:
        assert world.stream.exact


def step(world: World, op: str, draw: Random) -> None:
    if op in ("publish", "drop", "forget"):
        world.publish(draw.randint(1, 4), drop=op == "drop", forget=op == "forget")
    elif op == "deliver":
        world.deliver(draw.randint(1, 6))
    elif op == "answer":
        world.answer(draw.randint(1, 6))
    elif op == "wait":
        world.wait(draw.choice([0.5, 6.0, 70.0]))
    elif op == "silence":
        world.answering = not world.answering
    elif op == "cut":
        world.cut_answers(draw.randint(1, 3))
    elif op == "double":
        world.live.extend(list(world.live)[-1:])
    elif op == "attach":
        if not world.attached:
            world.attach()
    elif op == "detach":
        world.detach()
    else:
        world.restart()
