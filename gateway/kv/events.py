"""KV events of all engines: one thread, which waits on all their sockets and puts what comes into
the index, off the event loop.

Invariants: only the thread touches sockets and feeds; it is told what to follow by messages and
takes them in order, so an engine's slot is given back only when nothing more can be written to it;
what stays the same over a change goes on undisturbed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from time import monotonic

import zmq

from gateway.kv.feed import Context, Feed, Index, Socket, View, Wanted
from gateway.kv.tally import Tally
from gateway.logs import log

Key = tuple[str, str]  # of a feed: any two words

REPLAYS_MAX = 16  # at a time: what they send lies in memory
FILES_PER_FEED = 6  # those of a subscription, its monitor and a replay
IDLE_S = 60.0


class Sockets:
    """A poller that knows whom to call."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._ready: dict[Socket | int, Callable[[float], None]] = {}

    def add(self, socket: Socket | int, ready: Callable[[float], None]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._ready[socket] = ready

    def drop(self, socket: Socket) -> None:
        if self._ready.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def wait(self, seconds: float) -> None:
        """Until something is there or time is over; then calls whom it concerns."""
        found = self._poller.poll(ceil(seconds * 1000))
        now = monotonic()
        for socket, _ in found:
            ready = self._ready.get(socket)  # one before it may have closed it
            if ready is not None:
                ready(now)


class Subscriber:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._orders: deque[tuple[str, object]] = deque()
        self._feeds: dict[Key, Feed] = {}
        self._bell = -1
        self._thread: threading.Thread | None = None
        self._sockets = Sockets()
        self._touched: set[Feed] = set()
        self._asking: deque[Feed] = deque()
        self._replaying: set[Feed] = set()
        self._due = 0.0
        self._tallies: dict[Key, Tally] = {}
        self._former = Tally()  # of engines that are not followed any more

    # ---- for the event loop ----

    def follow(self, wanted: Mapping[Key, Wanted]) -> None:
        """Replaces what is followed. The thread starts with the first engine."""
        if self._thread is None:
            if not wanted:
                return
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
            self._order("follow", dict(wanted))
            self._thread.start()
        else:
            self._order("follow", dict(wanted))

    def release(self, slot: int) -> None:
        """Gives a slot of the index back, once nothing is written to it any more."""
        self._order("release", slot)

    def clear(self, slot: int) -> None:
        """Forgets what is known of an engine that is not followed any more."""
        self._order("clear", slot)

    def complete(self, key: Key) -> None:
        """What an engine reports of its hits agrees with what is known of it."""
        self._order("complete", key)

    def rejoin(self, key: Key) -> None:
        """Begins anew with an engine: what is known of it goes."""
        self._order("rejoin", key)

    def totals(self) -> Tally:
        """Of all engines, ever."""
        return self._former.plus(list(self._tallies.values()))

    def view(self, key: Key) -> View | None:
        """None where it is not followed (yet)."""
        feed = self._feeds.get(key)
        return None if feed is None else feed.view

    def close(self) -> None:
        """Ends the thread and its sockets; waits for both."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._orders.append(("end", None))
            os.eventfd_write(self._bell, 1)
            thread.join()
            os.close(self._bell)

    def _order(self, kind: str, value: object) -> None:
        self._orders.append((kind, value))
        if self._thread is None:
            self._take_orders(None)
        else:
            os.eventfd_write(self._bell, 1)

    # ---- the thread ----

    def _run(self) -> None:
        with zmq.Context() as context:
            context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))
            self._sockets.add(self._bell, self._rung)
            try:
                while self._take_orders(context):
                    try:
                        self._turn(context)
                    except Exception:  # outermost loop of the thread: one fault must not end it
                        log.exception("KV events: a fault while following engines")
            finally:
                for feed in self._feeds.values():
                    feed.close()
                self._feeds.clear()

    def _rung(self, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _take_orders(self, context: Context | None) -> bool:
        """False: the end. Without a context nothing is followed."""
        while self._orders:
            kind, value = self._orders.popleft()
            match kind, value:
                case "end", _:
                    return False
                case "follow", dict() if context is not None:
                    self._follow(value, context)
                case "release", int():
                    self._index.remove_engine(value)
                case "clear", int():
                    self._index.clear(value)
                case "complete", tuple() if value in self._feeds:
                    self._feeds[value].complete()
                case "rejoin", tuple() if value in self._feeds and context is not None:
                    self._feeds[value].close()
                    self._index.clear(self._feeds[value].slot)
                    self._feeds[value].open(context, monotonic())
                    self._touch(self._feeds[value])
        return True

    def _follow(self, wanted: dict[Key, Wanted], context: Context) -> None:
        now = monotonic()
        for key, feed in list(self._feeds.items()):
            want = wanted.get(key)
            if want != feed.wanted:
                del self._feeds[key]
                feed.close()
                self._touched.discard(feed)
                self._replaying.discard(feed)
                if want is None:
                    self._former = self._former.plus([self._tallies.pop(key)])
                else:
                    self._index.clear(feed.slot)  # another publisher: nothing is known of it
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 // FILES_PER_FEED
        for key, want in wanted.items():
            if key in self._feeds:
                continue
            tally = self._tallies.setdefault(key, Tally())
            feed = Feed(want, self._index, self._sockets, self._touch, tally)
            self._feeds[key] = feed
            if len(self._feeds) > room:
                feed.refuse("too many engines for the files a worker may open; hint: "
                            "worker_rlimit_nofile", now)  # fmt: skip
                feed.due = float("inf")
            else:
                feed.open(context, now)
            self._touch(feed)

    def _touch(self, feed: Feed) -> None:
        self._touched.add(feed)
        self._due = min(self._due, feed.due)
        if feed.asks is not None and feed not in self._asking:
            self._asking.append(feed)
        if not feed.replaying:
            self._replaying.discard(feed)

    def _turn(self, context: Context) -> None:
        self._look()
        self._sockets.wait(min(max(self._due - monotonic(), 0.0), IDLE_S))
        now = monotonic()
        if now >= self._due:
            self._tick(context, now)
        self._begin_replays(context)
        self._look()

    def _look(self) -> None:
        for feed in self._touched:
            feed.look()
        self._touched.clear()

    def _begin_replays(self, context: Context) -> None:
        while self._asking and len(self._replaying) < REPLAYS_MAX:
            feed = self._asking.popleft()
            if feed.asks is not None:
                feed.begin_replay(context, monotonic())
                self._replaying.add(feed)
                self._touch(feed)

    def _tick(self, context: Context, now: float) -> None:
        for feed in self._feeds.values():
            if now >= feed.due:
                if feed.is_open:
                    feed.tick(context, now)
                else:
                    feed.open(context, now)
                    self._touch(feed)
        self._due = min((feed.due for feed in self._feeds.values()), default=float("inf"))
