"""A publisher of KV events, a stream that follows it, the queues between them, and a clock: nothing
real, so that a test decides what happens when.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque

from gateway.kv import sequence
from gateway.kv.sequence import CHECK_S, Stream


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

    def cut_end(self, at: int) -> None:
        """The same, for the rest of it and the mark of its end."""
        self.answers = deque(list(self.answers)[:at])

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
