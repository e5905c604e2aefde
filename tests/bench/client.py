"""A cheap HTTP/1.1 client connection that checks every byte of every reply against what must come.

One request at a time. A chunk that arrives alone and unchanged is checked by one comparison;
anything else (chunks joined, split or framed anew by a proxy) takes the general way through a
de-chunker. A reply is done only when it was complete and right; what else can happen to it is in
`Tally.errors`, by kind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import cast

import wire

CRLF = b"\r\n"
WHOLE = b"\r\n\r\n"


class Tally:
    """What all connections of a run have seen."""

    __slots__ = ("chunks", "closed", "errors", "gap", "replies", "samples")

    def __init__(self) -> None:
        self.chunks = 0  # right content chunks
        self.replies = 0  # complete and right
        self.closed = 0  # replies after which the other side closed the connection, as HTTP allows
        self.gap = 0.0  # longest time between two reads of a running stream, s
        self.errors: Counter[str] = Counter()
        self.samples: list[str] = []

    def error(self, kind: str, sample: bytes = b"") -> None:
        self.errors[kind] += 1
        if len(self.samples) < 3:
            self.samples.append(f"{kind}: {sample[:300]!r}")


class Connection(asyncio.Protocol):
    """`ask` sends; then `done(connection)` is called exactly once, whatever happens."""

    transport: asyncio.Transport

    def __init__(self, tally: Tally, host: bytes) -> None:
        self.tally = tally
        self.host = host
        self.done: Callable[[Connection], None] | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self.done is not None:
            self.fail("lost", str(exc).encode())

    def ask(self, ask: wire.Ask, done: Callable[[Connection], None], at: float = 0.0) -> None:
        """Send a request; `at` is when it was meant to be sent, if that was earlier than now."""
        self.wanted = ask
        self.done = done
        self.t_sent = at or monotonic()
        self.t_first = 0.0  # first token (streams)
        self.t_done = 0.0
        self.ok = False
        self.in_head = True
        self.buffer = b""
        self.transport.write(wire.request(self.host, ask))

    def finish(self, ok: bool) -> None:
        done, self.done = self.done, None
        self.ok = ok
        self.t_done = monotonic()
        if ok:
            self.tally.replies += 1
        if not ok or self.closing:
            self.tally.closed += ok
            self.open = False
            self.transport.abort()
        if done is not None:
            done(self)

    def fail(self, kind: str, sample: bytes = b"") -> None:
        self.tally.error(kind, sample)
        self.closing = True
        self.finish(False)

    closing = False

    def data_received(self, data: bytes) -> None:
        if self.done is None:
            self.tally.error("unasked", data)
            self.transport.abort()
        elif self.in_head:
            self.head_received(data)
        elif self.wanted.stream:
            self.stream_received(data)
        else:
            self.body_received(data)

    def head_received(self, data: bytes) -> None:
        data = self.buffer + data if self.buffer else data
        end = data.find(WHOLE)
        if end < 0:
            self.buffer = data
            return
        if not data.startswith(b"HTTP/1.1 200"):
            self.fail("status " + data[9:12].decode("latin-1"), data)
            return
        head = data[: end + 2].lower()
        self.in_head = False
        self.buffer = b""
        self.closing = b"\r\nconnection: close\r\n" in head
        if self.wanted.stream:
            if (
                b"\r\ntransfer-encoding: chunked\r\n" not in head
                or b"text/event-stream" not in head
            ):
                self.fail("framing", data)
                return
            self.start_stream()
            if len(data) > end + 4:
                self.stream_received(data[end + 4 :])
            return
        at = head.find(b"\r\ncontent-length:")
        if at < 0:
            self.fail("framing", data)
            return
        self.length = int(head[at + 17 : head.find(CRLF, at + 2)])
        self.body_received(data[end + 4 :])

    def body_received(self, data: bytes) -> None:
        data = self.buffer + data if self.buffer else data
        if len(data) < self.length:
            self.buffer = data
        elif data == wire.json_body(self.wanted.nonce):
            self.finish(True)
        else:
            self.fail("wrong body", data)

    def start_stream(self) -> None:
        head = wire.event_head(self.wanted.nonce)
        self.event_head = head
        self.length = len(head) + len(wire.TOKENS[0]) + len(wire.EVENT_TAIL)
        self.frame = b"%x\r\n" % self.length + head
        self.token = -1  # number of the next content chunk; -1: the role event
        self.left = 0  # bytes of the current HTTP chunk still to come
        self.payload = b""  # events not yet complete
        self.closing_events = list(wire.closing_events(head, self.wanted.usage))
        self.t_last = monotonic()

    def stream_received(self, data: bytes) -> None:
        now = monotonic()
        if now - self.t_last > self.tally.gap:
            self.tally.gap = now - self.t_last
        self.t_last = now
        token = self.token
        if (
            0 <= token < self.wanted.chunks
            and not self.buffer
            and not self.payload
            and not self.left
            and data == self.frame + wire.TOKENS[token] + wire.EVENT_TAIL + CRLF
        ):
            if not token:
                self.t_first = now
            self.token = token + 1
            self.tally.chunks += 1
            return
        self.dechunk(self.buffer + data, now)

    def dechunk(self, data: bytes, now: float) -> None:
        """Take HTTP chunks apart; keep what is not complete in `buffer`. `left` counts a chunk's
        CRLF too.
        """
        at = 0
        while at < len(data):
            if self.left > 2:
                piece = data[at : at + self.left - 2]
                self.payload += piece
                at += len(piece)
                self.left -= len(piece)
            elif self.left:
                if len(data) - at < 2:
                    break
                at += 2
                self.left = 0
            else:
                end = data.find(CRLF, at)
                if end < 0:
                    break
                size = int(data[at:end], 16)
                if size == 0:
                    self.end_of_stream(data[at:])
                    return
                at = end + 2
                self.left = size + 2
        self.buffer = data[at:]
        self.check_events(now)

    def check_events(self, now: float) -> None:
        """Compare complete events in `payload` with those that must come next."""
        while self.payload:
            wanted = self.next_event()
            if len(self.payload) < len(wanted):
                return
            if not self.payload.startswith(wanted):
                self.fail("wrong event", self.payload)
                return
            self.payload = self.payload[len(wanted) :]
            if 0 <= self.token < self.wanted.chunks:
                self.tally.chunks += 1
                if self.token == 0:
                    self.t_first = now
            elif self.token >= self.wanted.chunks:
                self.closing_events.pop(0)
            if self.token < self.wanted.chunks:
                self.token += 1

    def next_event(self) -> bytes:
        if self.token < 0:
            return self.event_head + wire.ROLE_TAIL
        if self.token < self.wanted.chunks:
            return self.event_head + wire.TOKENS[self.token] + wire.EVENT_TAIL
        return self.closing_events[0] if self.closing_events else b"\0nothing more"

    def end_of_stream(self, data: bytes) -> None:
        """The last chunk is here; trailers are not expected."""
        if len(data) < len(wire.LAST_CHUNK):
            self.buffer = data
            return
        self.check_events(self.t_last)
        if self.done is None:
            return
        if self.payload or self.closing_events or self.token < self.wanted.chunks:
            self.fail("short stream", self.payload)
        elif data != wire.LAST_CHUNK:
            self.fail("bytes after the end", data)
        else:
            self.finish(True)
