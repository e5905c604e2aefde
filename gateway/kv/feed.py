"""The KV events of one engine: its sockets, its stream, and the index they go into.

Lives in the subscriber's thread but for `view`, which is replaced whole and may be read anywhere.
Invariants: what the stream says is done at once and in order; a replay has a socket of its own, so
that what is left of an abandoned one can never be taken for the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.kv.sequence import NOT_CONNECTED, Step, Stream
from gateway.kv.sources import Source
from gateway.kv.tally import Tally
from gateway.kv.trust import BLIND, EXACT, HEALING, Standing

RECEIVE_MAX = 10_000  # batches that libzmq holds for us; beyond, the engine's end fills and drops
REPLAY_MAX = 4_000  # the same of a replay: what is dropped is asked for again
MESSAGE_BYTES_MAX = 64 << 20
RECONNECT_MS, RECONNECT_MAX_MS = 100, 5_000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 15_000  # a host that vanished says no goodbye
BURST = 256  # batches of one engine before the others get a turn
FAILED_S = 5.0  # a socket that could not be opened is tried again
REDIAL_S = 15.0  # libzmq tries no more once its peer has broken the protocol: a new socket does
END = b"\xff" * 8  # the number behind a replay's last batch
NO_BIND = "; hint: a publisher whose endpoint has no * connects instead of binding"
NO_READ = "a batch of its events could not be read"

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class Applied(Protocol):
    """What a batch did to the index."""

    @property
    def cleared(self) -> int: ...
    @property
    def malformed(self) -> Mapping[str, int]: ...


class Index(Protocol):
    """As far as events go; see `native.Index`."""

    def apply(self, slot: int, payload: bytes) -> Applied: ...
    def clear(self, slot: int) -> None: ...
    def remove_engine(self, slot: int) -> None: ...


class Watch(Protocol):
    """Waits for sockets."""

    def add(self, socket: Socket, ready: Callable[[float], None]) -> None: ...
    def drop(self, socket: Socket) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """An engine to follow, and its slot in the index."""

    slot: int
    source: Source


@dataclass(frozen=True, slots=True)
class View:
    """What others may know. Times are monotonic seconds; None = never."""

    standing: Standing
    heard_at: float | None = None
    connected: bool = False
    next: int | None = None  # number of the batch that should come next
    tally: Tally = field(default_factory=Tally)


class Feed:
    """`touched` is called whenever something may have changed."""

    def __init__(
        self, wanted: Wanted, index: Index, watch: Watch, touched: Callable[[Feed], None],
        tally: Tally,
    ) -> None:
        self.wanted = wanted
        self.slot = wanted.slot
        self.source = wanted.source
        self.view = View(Standing(BLIND, "not connected yet"))
        self.asks: int | None = None  # a replay that the stream wants and that has not been begun
        self.due = 0.0
        self._index = index
        self._watch = watch
        self._touched = touched
        self._tally = tally
        self._stream = Stream(bool(self.source.replay), 0.0, tally)
        self._failure = ""
        self._ever = False  # it has been connected
        self._live: Socket | None = None
        self._monitor: Socket | None = None
        self._replay: Socket | None = None

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    # ---- sockets ----

    def open(self, context: Context, now: float) -> None:
        """Subscribes; a failure is told and tried again."""
        self._stream = Stream(bool(self.source.replay), now, self._tally)
        self._failure = ""
        self.due = self._stream.due
        self._dial(context, now)

    def _dial(self, context: Context, now: float) -> None:
        try:
            self._live = live = context.socket(zmq.SUB)
            live.rcvhwm = RECEIVE_MAX
            live.subscribe(self.source.topic.encode())
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            self._monitor = live.get_monitor_socket(events)
            self._connect(live, self.source.endpoint)
        except zmq.ZMQError as error:
            self.refuse(f"its events at {self.source.endpoint}: {error}", now)
            return
        self._watch.add(self._monitor, self._read_monitor)
        self._watch.add(live, self._read_live)

    def refuse(self, why: str, now: float) -> None:
        self.close()
        self._failure = why
        self.due = now + FAILED_S
        self._touched(self)

    @property
    def is_open(self) -> bool:
        return self._live is not None

    @staticmethod
    def _connect(socket: Socket, endpoint: str) -> None:
        socket.linger = 0
        socket.ipv6 = "[" in endpoint
        socket.maxmsgsize = MESSAGE_BYTES_MAX
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS
        socket.tcp_keepalive = 1
        socket.connect(endpoint)

    def begin_replay(self, context: Context, now: float) -> None:
        """Asks for what `asks` says."""
        assert self.asks is not None
        first, self.asks = self.asks, None
        self._stream.put_off(now)
        try:
            self._replay = context.socket(zmq.DEALER)
            self._replay.rcvhwm = REPLAY_MAX
            self._connect(self._replay, self.source.replay)
            self._replay.send_multipart((b"", first.to_bytes(8, "big")), zmq.NOBLOCK)
        except zmq.ZMQError:  # told as a replay that does not answer
            self._end_replay()
            return
        self._watch.add(self._replay, self._read_replay)

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._watch.drop(self._replay)
            self._replay.close(0)
            self._replay = None

    def close(self) -> None:
        self._end_replay()
        self.asks = None
        live, self._live = self._live, None
        if live is None:
            return
        if self._monitor is not None:
            self._watch.drop(self._monitor)
            live.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._watch.drop(live)
        live.close(0)

    # ---- what comes in ----

    def _read_monitor(self, now: float) -> None:
        """Connections that came and went."""
        while self._monitor is not None and _readable(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._do(self._stream.disconnected(now))
                continue
            self._ever = True
            if self._stream.next is None:
                self._index.clear(self.slot)  # what decisions put there while it was away
            self._do(self._stream.connected(now))

    def _read_live(self, now: float) -> None:
        """Batches as they are published."""
        self._read_monitor(now)  # a batch must not be taken for one of the connection before
        for _ in range(BURST):
            if self._live is None:
                return
            try:
                frames = self._live.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or len(frames[1]) != 8:
                self._stream.tally.malformed += 1
                continue
            self._do(self._stream.live(int.from_bytes(frames[1], "big"), frames[2], now))

    def _read_replay(self, now: float) -> None:
        """Batches of a replay: an empty frame, then as they were published."""
        for _ in range(BURST):
            if self._replay is None:
                return
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 4 or len(frames[2]) != 8:
                self._stream.tally.malformed += 1
            elif frames[2] == END:
                self._do(self._stream.replay_over(now))
            else:
                seq = int.from_bytes(frames[2], "big")
                self._do(self._stream.replayed(seq, frames[3], now))

    def tick(self, context: Context, now: float) -> None:
        if self._stream.why == NOT_CONNECTED:
            self.close()
            self._dial(context, now)
        elif self.asks is not None:
            self._stream.put_off(now)  # the replay waits for its turn, not for the engine
        self._do(self._stream.tick(now))
        if self._stream.why == NOT_CONNECTED and self.is_open:
            self.due = now + REDIAL_S

    def complete(self) -> None:
        """What the engine reports of its hits agrees with what is known of it."""
        self._stream.complete()
        self._touched(self)

    def _do(self, steps: list[Step]) -> None:
        stream = self._stream
        for kind, value in steps:
            if kind == "apply":
                assert isinstance(value, bytes)
                applied = self._index.apply(self.slot, value)
                if applied.malformed:
                    stream.tally.malformed += 1
                    stream.incomplete(NO_READ)
                if applied.cleared:
                    stream.complete()
            elif kind == "clear":
                self._index.clear(self.slot)
            else:
                self._end_replay()
                self.asks = value if kind == "ask" and isinstance(value, int) else None
        if stream.why != NOT_CONNECTED:
            self.due = stream.due
        self._touched(self)

    def look(self) -> None:
        """Renews the view."""
        stream = self._stream
        if self._failure:
            standing = Standing(BLIND, self._failure)
        elif stream.exact:
            standing = Standing(EXACT)
        elif stream.why == NOT_CONNECTED:
            hint = "" if self._ever else NO_BIND
            standing = Standing(BLIND, f"nobody publishes at {self.source.endpoint}{hint}")
        else:
            standing = Standing(HEALING, stream.reason)
        up = stream.lost_at is None and not self._failure
        self.view = View(standing, stream.heard_at, up, stream.next, stream.tally)


def _readable(socket: Socket) -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)
