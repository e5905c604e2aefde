"""Publishes events over ZeroMQ as an engine's publisher does: numbered batches, and a socket that
gives them again.

Invariants: numbers have no hole; whoever asks from 0 is given all that is there: the batches since
the start, or where those are not kept any more, what is there now in place of the forgotten ones.
When changes were missed (nobody took them in time) numbers begin anew, as after a restart.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator

import zmq

from kvbm.conf.model import Events
from kvbm.events import BITS, Change, Kept, Space, events, payload
from kvbm.logs import log
from kvbm.paths import make_way
from native import _core

POLL_MS = 50  # changes are looked for so often
CHANGES_MAX = 4096  # of a batch
END = b"\xff" * 8
SEND_HWM = 100_000


class Publisher:
    """One endpoint. `start` and `stop` once each. Raises OSError where it cannot be bound."""

    def __init__(self, options: Events, core: _core.KvbmCore) -> None:
        self._options, self._core = options, core
        self._topic = options.topic.encode()
        self._context = zmq.Context()
        self._live = self._bind(zmq.PUB, options.endpoint)
        self._live.sndhwm = SEND_HWM
        self.endpoint = _endpoint(self._live)
        self._replays = self._bind(zmq.ROUTER, options.replay) if options.replay else None
        self.replay = _endpoint(self._replays) if self._replays else ""
        self._kept = Kept(options.buffer)
        self._next_change = 1
        self._spaces: dict[int, Space] = {}
        self._stopping = threading.Event()
        self.batches = 0
        self.restarts = 0
        self._thread = threading.Thread(target=self._run, name="kvbm-events")

    def _bind(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 0
        if endpoint.startswith("ipc:///"):
            make_way(endpoint.removeprefix("ipc://"))
        try:
            made.bind(endpoint)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot publish at {endpoint}: {error.strerror}") from None
        return made

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        try:
            self._guarded(self._snapshot)
            while not self._stopping.is_set():
                self._guarded(self._follow)
                self._answer()
        except Exception:
            log.exception("events: given up")

    def _guarded(self, work: Callable[[], None]) -> None:
        """A core that does not answer now is asked again later."""
        try:
            work()
        except TimeoutError as error:
            log.warning("events: %s", error)

    # ---- what is published

    def _publish(self, batch: list[dict[str, object]]) -> None:
        data = payload(time.time(), batch)
        number = self._kept.add(data)
        self.batches += 1
        self._live.send_multipart([self._topic, struct.pack(">Q", number), data])

    def _know(self, numbers: set[int]) -> None:
        """Looks up namespaces that have not been seen yet."""
        if numbers <= self._spaces.keys():
            return
        for row in self._core.namespaces():
            self._spaces[row[0]] = Space.of(row)

    def _told(self, changes: list[Change]) -> list[dict[str, object]]:
        self._know({change[2] for change in changes if change[0] != "cleared"})
        model = self._options.model
        wanted = {n: space for n, space in self._spaces.items() if model in ("", space.model)}
        return list(events(changes, wanted))

    def _stored(self) -> Iterator[list[dict[str, object]]]:
        """All blocks that are there, some at a time."""
        cursor: int | None = 0
        while cursor is not None:
            rows, cursor = self._core.blocks(cursor, CHANGES_MAX)
            yield self._told(
                [
                    ("stored", tier, number, key, size)
                    for tier, bit in BITS
                    for number, key, size, _, tiers in rows
                    if tiers & bit
                ]
            )

    def _snapshot(self) -> None:
        """What is there at the start, as the first batches."""
        for batch in self._stored():
            if batch:
                self._publish(batch)

    def _follow(self) -> None:
        complete, first, changes = self._core.changes(self._next_change, CHANGES_MAX)
        cleared = any(what == "cleared" for what, *_ in changes)
        if not complete or cleared:
            # Who follows cannot know what went: another life begins, with what is there now.
            log.warning("events: changes were missed or a tier was emptied; numbers begin anew")
            self._next_change = max(first, 1) + len(changes)
            self._kept.clear()
            self.restarts += 1
            self._snapshot()
            if self._kept.next == 0:
                self._publish([])
            return
        self._next_change = first + len(changes)
        batch = self._told(changes)
        if batch:
            self._publish(batch)

    # ---- what is asked for again

    def _answer(self) -> None:
        """Waits for requests for a moment, longer where nothing happens."""
        if self._replays is None:
            self._stopping.wait(POLL_MS / 1000)
            return
        if not self._replays.poll(POLL_MS):
            return
        frames = self._replays.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        asker, (first,) = frames[0], struct.unpack(">Q", frames[2])
        for number, data in self._history(first):
            self._reply(asker, self._topic, struct.pack(">Q", number), data)
        self._reply(asker, b"", END, b"")

    def _reply(self, asker: bytes, topic: bytes, number: bytes, data: bytes) -> None:
        assert self._replays is not None
        self._replays.send_multipart([asker, b"", topic, number, data])

    def _history(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Batches from a number on. Of those that are forgotten the first ones say what is there
        now; what came and went meanwhile is in those that are kept, or still to come.
        """
        oldest = self._kept.oldest
        if first == 0 and oldest > 0:
            now, number = time.time(), 0
            last: list[dict[str, object]] = []
            for batch in self._stored():
                if number < oldest - 1:
                    yield number, payload(now, batch)
                    number += 1
                else:
                    last += batch
            while number < oldest - 1:
                yield number, payload(now, [])
                number += 1
            yield number, payload(now, last)
        yield from self._kept.since(first)


def _endpoint(sock: zmq.Socket[bytes]) -> str:
    """Where it is bound, with the port that was found for it."""
    bound = sock.get(zmq.LAST_ENDPOINT)
    return bound.decode() if isinstance(bound, bytes) else str(bound)
