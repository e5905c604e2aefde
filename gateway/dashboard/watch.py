"""The streams of browsers that watch: one reading a second for all of them, while there are any.

Invariants: at most STREAMS_MAX per worker; a browser that is slow gets the newest snapshot and
skips those before, so nothing queues up; a worker that is about to end sends its browsers away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import orjson

from gateway import errors
from gateway.dashboard.snapshot import Reading, changes, snapshot

if TYPE_CHECKING:
    from gateway.dashboard.readings import Reader
    from gateway.dashboard.receipts import Receipts

TICK_S = 1.0
WINDOW_S = 10.0  # what rates and percentiles are of
STREAMS_MAX = 8
CHANGES_KEPT = 40


class Stream:
    """What one browser is sent: an iterator over snapshots, as bytes of an event stream."""

    __slots__ = ("_latest", "_ready", "over")

    def __init__(self) -> None:
        self.over = False
        self._latest: bytes | None = None
        self._ready = asyncio.Event()

    def put(self, event: bytes) -> None:
        self._latest = event
        self._ready.set()

    def end(self) -> None:
        self.over = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self.over:
            await self._ready.wait()
            self._ready.clear()
            event, self._latest = self._latest, None
            if event is not None and not self.over:
                yield event


class Watch:
    def __init__(
        self, reader: Reader, receipts: Receipts, say: Callable[[int], None], tick_s: float = TICK_S
    ) -> None:
        """`say(n)`: so many browsers watch this worker."""
        self._reader = reader
        self._receipts = receipts
        self._say = say
        self._tick_s = tick_s
        self._streams: set[Stream] = set()
        self._readings: deque[Reading] = deque()
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_KEPT)
        self._timer: asyncio.TimerHandle | None = None

    # ---- browsers ----

    def open(self) -> Stream:
        """One more, which is told at once. Raises TooManyRequests, Draining."""
        if self._reader.ending:
            raise errors.Draining()
        if len(self._streams) >= STREAMS_MAX:
            what = f"{STREAMS_MAX} browsers watch this worker already: close one of them"
            raise errors.TooManyRequests(what=what)
        stream = Stream()
        self._streams.add(stream)
        self._say(len(self._streams))
        try:
            if self._timer is None:
                self._tick()
            else:
                stream.put(self._event())
        except BaseException:  # whatever it is, the place is free again
            self.close(stream)
            raise
        return stream

    def close(self, stream: Stream) -> None:
        stream.end()
        self._streams.discard(stream)
        self._say(len(self._streams))
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Sends all browsers away: their streams end, which closes them."""
        for stream in self._streams:
            stream.end()

    # ---- ticks ----

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        if self._reader.ending:
            self.end()
            return
        self.look(monotonic(), time())
        event = self._event()
        for stream in self._streams:
            stream.put(event)

    def look(self, now: float, wall: float) -> None:
        """Takes a reading, and lets go of those that are too old."""
        reading, readings = self._reader.read(now, wall), self._readings
        if readings and now - readings[-1].at > WINDOW_S:  # nobody has looked in between
            readings.clear()
        if readings:
            self._changes.extend(changes(reading, readings[-1]))
        readings.append(reading)
        while len(readings) > 2 and now - readings[1].at >= WINDOW_S:
            readings.popleft()

    def document(self) -> dict[str, Any]:
        """The snapshot of the latest reading."""
        newest, oldest = self._readings[-1], self._readings[0]
        return snapshot(newest, oldest, self._reader.bounds, self._changes, self._receipts.kept)

    def _event(self) -> bytes:
        return b"event: snapshot\ndata: " + orjson.dumps(self.document()) + b"\n\n"
